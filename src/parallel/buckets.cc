// See buckets.h.
#include "parallel/buckets.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "comm/single_group.h"
#include "core/error.h"

namespace megalith {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

at::Tensor run_of(const at::Tensor& buffer, const FlatRange& range) {
  return buffer.narrow(0, range.begin, range.size());
}

}  // namespace

BucketPlan plan_buckets(const std::vector<Parameter*>& params, const BucketRules& rules) {
  struct Open {
    BufferSpec spec;
    Bucket bucket;
    size_t last_member = 0;  // its place in the order of completion
  };
  std::vector<Open> open;
  std::vector<std::pair<size_t, Bucket>> closed;
  const auto close = [&](Open& one) {
    const int64_t multiple = rules.bucket_multiple ? rules.bucket_multiple(one.spec.axes) : 1;
    one.bucket.range.end = one.spec.size =
        one.bucket.range.begin + round_up(one.spec.size - one.bucket.range.begin, multiple);
    closed.emplace_back(one.last_member, one.bucket);
    one.bucket.members.clear();
    one.bucket.range = {one.spec.size, one.spec.size};
  };
  for (size_t i = params.size(); i-- > 0;) {
    Parameter* param = params[i];
    if (!param->is_trainable()) continue;
    const at::ScalarType dtype = param->value().scalar_type();
    const AxisSet axes = param->placement().partial_axes.without(Axis::kTp);
    auto found = std::find_if(open.begin(), open.end(),
                              [&](const Open& one) { return one.spec.dtype == dtype && one.spec.axes == axes; });
    if (found == open.end()) {
      Open fresh{.spec = {.dtype = dtype, .grad_dtype = param->grad_dtype(), .axes = axes}, .bucket = {}};
      fresh.bucket.buffer = open.size();
      found = open.insert(open.end(), fresh);
    }
    const int64_t offset = round_up(found->spec.size, rules.alignment);
    found->bucket.members.push_back({param, offset});
    found->spec.size = offset + param->placement().num_local_elements();
    found->last_member = params.size() - i;
    if (found->spec.size - found->bucket.range.begin >= rules.bucket_elements) close(*found);
  }
  BucketPlan plan;
  for (Open& one : open) {
    if (!one.bucket.members.empty()) close(one);
    plan.buffers.push_back(one.spec);
  }
  std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, bucket] : closed) plan.buckets.push_back(std::move(bucket));
  return plan;
}

ReductionGroups reduction_groups(const AxisSet& partial_axes, const Groups& groups) {
  const AxisSet axes = partial_axes.without(Axis::kPp);  // data_parallel.h sums over the ends of a pipeline
  const auto single = [&] { return std::make_shared<SingleGroup>("none", groups.rank); };
  ReductionGroups found;
  if (axes == AxisSet{Axis::kDp, Axis::kCp}) {
    found = {groups.dp_cp, groups.dp_shard_cp, groups.dp_replicate, Axis::kDpReplicate};
  } else if (axes == AxisSet{Axis::kDp}) {
    found = {groups.dp, groups.dp_shard, groups.dp_replicate, Axis::kDpReplicate};
  } else if (axes == AxisSet{Axis::kEdp}) {
    found = {groups.edp, groups.edp_shard, groups.edp_replicate, Axis::kEdpReplicate};
  } else if (axes == AxisSet{Axis::kCp}) {
    found = {groups.cp, groups.cp, single(), std::nullopt};
  } else {
    MEGALITH_CHECK(axes.empty(), "gradients that are partial over {} have no group", axes.text());
    found = {single(), single(), single(), std::nullopt};
  }
  if (found.replicate->size() == 1) found.replicate_axis.reset();
  return found;
}

GradReducer::GradReducer(BucketPlan plan, const Groups& groups, Form form, const GradBufferOptions& options,
                         at::Device device)
    : plan_(std::move(plan)), form_(form), options_(options) {
  for (const BufferSpec& spec : plan_.buffers) {
    groups_.push_back(reduction_groups(spec.axes, groups));
    // Zeros, because padding travels along and must stay finite.
    buffers_.push_back(at::zeros({spec.size}, at::TensorOptions().dtype(spec.grad_dtype).device(device)));
  }
  reductions_.resize(plan_.buckets.size());
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    for (const auto& [param, offset] : bucket.members) {
      const Placement& placement = param->placement();
      param->attach_grad_buffer(
          buffers_[bucket.buffer].narrow(0, offset, placement.num_local_elements()).view(placement.local_shape));
      param->set_ready_hook([this, b](Parameter&) {
        --reductions_[b].num_pending;
        if (options_.overlap) launch_complete_buckets();
      });
    }
  }
}

GradReducer::~GradReducer() {
  for (const Bucket& bucket : plan_.buckets) {
    for (const BucketMember& member : bucket.members) member.parameter->set_ready_hook({});
  }
}

FlatRange GradReducer::own_range(const Bucket& bucket) const {
  if (form_ == Form::kAllReduce) return bucket.range;
  const Group& group = *groups_of(bucket).shard;
  const int64_t size = div_exact(bucket.range.size(), int64_t{group.size()});
  const int64_t begin = bucket.range.begin + group.rank() * size;
  return {begin, begin + size};
}

void GradReducer::begin_step() {
  for (size_t b = 0; b < reductions_.size(); ++b) {
    for (const BucketMember& member : plan_.buckets[b].members) member.parameter->begin_step();
    reductions_[b].num_pending = static_cast<int64_t>(plan_.buckets[b].members.size());
  }
  next_bucket_ = 0;
}

void GradReducer::begin_microbatch(bool is_last) {
  for (const Bucket& bucket : plan_.buckets) {
    for (const BucketMember& member : bucket.members) member.parameter->set_last_microbatch(is_last);
  }
}

void GradReducer::launch_complete_buckets() {
  while (next_bucket_ < reductions_.size() && reductions_[next_bucket_].num_pending <= 0) launch(next_bucket_++);
}

void GradReducer::launch(size_t index) {
  const Bucket& bucket = plan_.buckets[index];
  const ReductionGroups& groups = groups_of(bucket);
  Reduction& reduction = reductions_[index];
  const FlatRange own = own_range(bucket);
  reduction.sent = run_of(buffers_[bucket.buffer], bucket.range);
  if (options_.reduce_in_bf16 && reduction.sent.scalar_type() == at::kFloat && groups.whole->size() > 1) {
    reduction.sent = reduction.sent.to(at::kBFloat16);
  }
  reduction.own = reduction.sent.narrow(0, own.begin - bucket.range.begin, own.size());
  const std::string label = fmt::format("grad bucket {}", index);
  reduction.work = form_ == Form::kAllReduce
                       ? groups.whole->all_reduce(reduction.sent, ReduceOp::kSum, label)
                       : groups.shard->reduce_scatter(reduction.own, reduction.sent, ReduceOp::kSum, label);
}

void GradReducer::finish_step() {
  for (size_t b = 0; b < reductions_.size(); ++b) {
    for (const BucketMember& member : plan_.buckets[b].members) member.parameter->finish_step();
    reductions_[b].num_pending = 0;
  }
  launch_complete_buckets();
  if (form_ == Form::kReduceScatter) {
    // Runs of all buckets are summed across the copies while later ones are still being scattered.
    for (size_t b = 0; b < reductions_.size(); ++b) {
      Group& across = *groups_of(plan_.buckets[b]).replicate;
      if (across.size() == 1) continue;
      reductions_[b].work.wait();
      reductions_[b].work =
          across.all_reduce(reductions_[b].own, ReduceOp::kSum, fmt::format("grad run of bucket {}", b));
    }
  }
  for (size_t b = 0; b < reductions_.size(); ++b) {
    Reduction& reduction = reductions_[b];
    reduction.work.wait();
    const at::Tensor target = run_of(buffers_[plan_.buckets[b].buffer], own_range(plan_.buckets[b]));
    if (reduction.own.scalar_type() != target.scalar_type()) target.copy_(reduction.own);
    reduction = {};
  }
}

int64_t GradReducer::num_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers_) bytes += static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

}  // namespace megalith
