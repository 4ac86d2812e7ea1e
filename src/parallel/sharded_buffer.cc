#include "parallel/sharded_buffer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace megalith {

class ShardedGradBuffer::WaitingRunner : public BlockRunner {
 public:
  explicit WaitingRunner(ShardedGradBuffer& buffer) : buffer_(buffer) {}

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override {
    if (buffer_.num_gathering_ > 0) {
      for (const Module* module : block.modules) {
        module->for_each_parameter([&](const Parameter& param) {
          const auto found = buffer_.bucket_of_.find(&param);
          if (found != buffer_.bucket_of_.end()) buffer_.wait_for_bucket(found->second);
        });
      }
    }
    return body(inputs);
  }

 private:
  ShardedGradBuffer& buffer_;
};

ShardedGradBuffer::ShardedGradBuffer(const std::vector<Parameter*>& params, const Groups& groups,
                                     const ShardedBufferOptions& options)
    : params_(params), groups_(groups), options_(options) {
  const auto num_runs = [&](const AxisSet& axes) -> int64_t { return reduction_groups(axes, groups).shard->size(); };
  BucketPlan plan = plan_buckets(
      params, {.bucket_elements = options.gradients.bucket_elements,
               .alignment = kAlignment,
               .bucket_multiple =
                   [&](const AxisSet& axes) { return std::lcm(kAlignment * num_runs(axes), options.bucket_multiple); },
               .num_runs = num_runs,
               .cut = options.cut});
  const at::Device device = params.empty() ? at::kCPU : params[0]->value().device();
  for (const BufferSpec& spec : plan.buffers) {
    parameter_buffers_.push_back(at::zeros({spec.size}, at::TensorOptions().dtype(spec.dtype).device(device)));
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    for (const auto& [param, offset] : bucket.members) {
      const Placement& placement = param->placement();
      param->rebind(parameter_buffers_[bucket.buffer]
                        .narrow(0, offset, placement.num_local_elements())
                        .view(placement.local_shape));
      bucket_of_[param] = b;
    }
  }
  gathers_.resize(plan.buckets.size());
  reducer_ = std::make_unique<GradReducer>(std::move(plan), groups, GradReducer::Form::kReduceScatter,
                                           options.gradients, device);

  model_parts_ = whole_parameters(params);
  for (Parameter* param : params) {
    if (!param->is_trainable()) continue;
    const Bucket& bucket = reducer_->plan().buckets[bucket_of_.at(param)];
    const auto member = std::find_if(bucket.members.begin(), bucket.members.end(),
                                     [&](const BucketMember& one) { return one.parameter == param; });
    Group& shard = *reducer_->groups_of(bucket).shard;
    runs_.push_back({.parameter = param,
                     .group = &shard,
                     .first = bucket.range.begin - member->offset,
                     .size = reducer_->own_range(bucket).size()});
    const FlatRange own = runs_.back().of(shard.rank());
    if (own.size() == 0) continue;
    const AxisSet axes = reducer_->plan().buffers[bucket.buffer].axes.without(Axis::kPp);
    MEGALITH_CHECK(axes.without(param->placement().replica_axes).empty(),
                   "{}: its gradient is a sum over {}, and so must its values be the same along them", param->name(),
                   axes.text());
    AxisSet replica_axes = param->placement().replica_axes.without(axes);
    if (const auto axis = reducer_->groups_of(bucket).replicate_axis) replica_axes.insert(*axis);
    parts_.push_back({.parameter = param,
                      .range = own,
                      .model = param->data().view(-1).narrow(0, own.begin, own.size()),
                      .grad = param->grad().view(-1).narrow(0, own.begin, own.size()),
                      .replica_axes = replica_axes});
  }
  if (options_.overlap_gather) runner_ = std::make_unique<WaitingRunner>(*this);
}

ShardedGradBuffer::~ShardedGradBuffer() = default;

void ShardedGradBuffer::initialise(uint64_t seed, bool only_adapters) {
  for (Parameter* param : params_) {
    if (!only_adapters || param->options().is_adapter) param->initialise(seed);
  }
}

void ShardedGradBuffer::finish_step() {
  // The optimizer writes parameters next; forward may not have used all of them.
  wait_for_parameters();
  reducer_->finish_step();
  sum_over_model_ranks(parts_, groups_);
}

void ShardedGradBuffer::publish() {
  wait_for_parameters();
  const std::vector<Bucket>& buckets = reducer_->plan().buckets;
  for (size_t b = buckets.size(); b-- > 0;) {
    const FlatRange own = reducer_->own_range(buckets[b]);
    const at::Tensor& buffer = parameter_buffers_[buckets[b].buffer];
    ++num_gathering_;
    gathers_[b] =
        reducer_->groups_of(buckets[b])
            .shard->all_gather(buffer.narrow(0, buckets[b].range.begin, buckets[b].range.size()),
                               buffer.narrow(0, own.begin, own.size()), fmt::format("parameter bucket {}", b));
  }
  if (!options_.overlap_gather) wait_for_parameters();
}

void ShardedGradBuffer::wait_for_bucket(size_t index) {
  if (!gathers_[index]) return;
  gathers_[index]->wait();
  gathers_[index].reset();
  --num_gathering_;
}

void ShardedGradBuffer::wait_for_parameters() {
  for (size_t b = gathers_.size(); b-- > 0;) wait_for_bucket(b);
}

int64_t ShardedGradBuffer::parameter_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : parameter_buffers_) bytes += static_cast<int64_t>(buffer.nbytes());
  for (const Parameter* param : params_) {
    if (!param->is_trainable()) bytes += param->num_bytes();
  }
  return bytes;
}

}  // namespace megalith
