// Gradient buckets; see grad_buffer.h.
#include "parallel/grad_buffer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {

GradBuffer::GradBuffer(const std::vector<Parameter*>& params, std::shared_ptr<Group> group,
                       const GradBufferOptions& options)
    : params_(params.rbegin(), params.rend()), group_(std::move(group)), options_(options) {
  // Last layers first: backward reaches them first. One buffer a dtype; a bucket never spans two.
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    std::vector<Parameter*> members;
    int64_t total = 0;
    for (Parameter* param : params_) {
      MEGALITH_CHECK(param->is_trainable(), "{} is frozen and needs no gradient", param->name());
      if (param->grad_dtype() != dtype) continue;
      members.push_back(param);
      total += param->placement().num_local_elements();
    }
    if (members.empty()) continue;
    const at::Tensor buffer = at::empty({total}, at::TensorOptions(members[0]->value().device()).dtype(dtype));
    buffers_.push_back(buffer);
    int64_t offset = 0, bucket_begin = 0;
    Bucket bucket;
    for (Parameter* param : members) {
      const int64_t count = param->placement().num_local_elements();
      param->attach_grad_buffer(buffer.narrow(0, offset, count).view(param->placement().local_shape));
      bucket.params.push_back(param);
      offset += count;
      if (offset - bucket_begin >= options_.bucket_elements || param == members.back()) {
        bucket.tensor = buffer.narrow(0, bucket_begin, offset - bucket_begin);
        buckets_.push_back(std::move(bucket));
        bucket = {};
        bucket_begin = offset;
      }
    }
  }
  for (Parameter* param : params_) {
    param->set_ready_hook([this](Parameter& ready) { on_ready(ready); });
  }
}

GradBuffer::~GradBuffer() {
  for (Parameter* param : params_) param->set_ready_hook({});
}

void GradBuffer::begin_step() {
  for (Parameter* param : params_) param->begin_step();
  for (Bucket& bucket : buckets_) bucket.num_pending = static_cast<int64_t>(bucket.params.size());
  next_bucket_ = 0;
}

void GradBuffer::begin_microbatch(bool is_last) {
  for (Parameter* param : params_) param->set_last_microbatch(is_last);
}

void GradBuffer::on_ready(Parameter& param) {
  for (Bucket& bucket : buckets_) {
    if (std::find(bucket.params.begin(), bucket.params.end(), &param) != bucket.params.end()) {
      --bucket.num_pending;
      break;
    }
  }
  if (options_.overlap) launch_ready_buckets();
}

void GradBuffer::launch_ready_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].num_pending <= 0) {
    Bucket& bucket = buckets_[next_bucket_];
    bucket.work = group_->all_reduce(bucket.tensor, ReduceOp::kSum, fmt::format("grad bucket {}", next_bucket_));
    ++next_bucket_;
  }
}

void GradBuffer::finish_step() {
  for (Parameter* param : params_) param->finish_step();
  for (Bucket& bucket : buckets_) bucket.num_pending = 0;
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    bucket.work = {};
  }
}

int64_t GradBuffer::num_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers_) bytes += static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

}  // namespace megalith
