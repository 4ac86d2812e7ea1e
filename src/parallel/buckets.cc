#include "parallel/buckets.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "comm/single_group.h"
#include "core/error.h"

namespace megalith {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

at::Tensor run_of(const at::Tensor& buffer, const FlatRange& range) {
  return buffer.narrow(0, range.begin, range.size());
}

// Packs parameters into runs, largest first, each into the emptiest, keeping their order within a run. Offsets are from
// the bucket's beginning, for runs of `size`.
struct PackedRuns {
  int64_t size = 0, num_elements = 0;  // of the longest run and of all parameters, both aligned
  std::vector<int64_t> run, offset;    // by parameter; offset in its run
};

PackedRuns pack_runs(const std::vector<BucketMember>& members, int64_t num_runs, int64_t alignment) {
  const auto size_of = [&](size_t i) {
    return round_up(members[i].parameter->placement().num_local_elements(), alignment);
  };
  std::vector<size_t> by_size(members.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) { return size_of(a) > size_of(b); });
  PackedRuns packed{.run = std::vector<int64_t>(members.size()), .offset = std::vector<int64_t>(members.size())};
  std::vector<int64_t> load(static_cast<size_t>(num_runs));
  for (const size_t i : by_size) {
    const auto least = std::min_element(load.begin(), load.end());
    packed.run[i] = least - load.begin();
    *least += size_of(i);
  }
  packed.size = *std::max_element(load.begin(), load.end());
  packed.num_elements = std::accumulate(load.begin(), load.end(), int64_t{0});
  std::fill(load.begin(), load.end(), 0);
  for (size_t i = 0; i < members.size(); ++i) {
    int64_t& end = load[static_cast<size_t>(packed.run[i])];
    packed.offset[i] = end;
    end += size_of(i);
  }
  return packed;
}

// A buffer being filled, with the bucket at its end.
class OpenBuffer {
 public:
  OpenBuffer(const BufferSpec& spec, size_t index, const BucketRules& rules) : spec_(spec), rules_(rules) {
    bucket_.buffer = index;
  }
  const BufferSpec& spec() const { return spec_; }
  bool is_empty() const { return bucket_.members.empty(); }

  // order  of the parameter in backward
  void add(Parameter* param, size_t order) {
    const int64_t offset = round_up(spec_.size, rules_.alignment);
    bucket_.members.push_back({param, offset});
    spec_.size = offset + param->placement().num_local_elements();
    last_member_ = order;
  }
  bool is_full() const {
    if (spec_.size - bucket_.range.begin < rules_.bucket_elements) return false;
    return spec_.cut == BucketCut::kAnywhere || is_even(packed());
  }
  // Returns the bucket with its last member's place in backward, and begins the next.
  std::pair<size_t, Bucket> close() {
    int64_t size = spec_.size - bucket_.range.begin;
    if (spec_.cut == BucketCut::kBetweenMatrices) size = keep_matrices_whole(size);
    const int64_t multiple = rules_.bucket_multiple ? rules_.bucket_multiple(spec_.axes) : 1;
    bucket_.range.end = spec_.size = bucket_.range.begin + round_up(size, multiple);
    std::pair<size_t, Bucket> closed{last_member_, bucket_};
    bucket_.members.clear();
    bucket_.range = {spec_.size, spec_.size};
    bucket_.cut = BucketCut::kAnywhere;
    return closed;
  }

 private:
  int64_t num_runs() const { return rules_.num_runs ? rules_.num_runs(spec_.axes) : 1; }
  PackedRuns packed() const { return pack_runs(bucket_.members, num_runs(), rules_.alignment); }
  bool is_even(const PackedRuns& packed) const {
    const int64_t padding = packed.size * num_runs() - packed.num_elements;
    return static_cast<double>(padding) <= kMostRunPadding * static_cast<double>(packed.num_elements);
  }
  // Moves members into even runs; returns the bucket's size.
  int64_t keep_matrices_whole(int64_t size) {
    const PackedRuns runs = packed();
    if (!is_even(runs)) return size;
    const int64_t multiple = rules_.bucket_multiple ? rules_.bucket_multiple(spec_.axes) : 1;
    const int64_t run_size = div_exact(round_up(runs.size * num_runs(), multiple), num_runs());
    for (size_t i = 0; i < bucket_.members.size(); ++i) {
      bucket_.members[i].offset = bucket_.range.begin + runs.run[i] * run_size + runs.offset[i];
    }
    bucket_.cut = BucketCut::kBetweenMatrices;
    return run_size * num_runs();
  }

  BufferSpec spec_;
  const BucketRules& rules_;
  Bucket bucket_;
  size_t last_member_ = 0;
};

}  // namespace

namespace {

// Stages register shared parameters in different orders, but their layouts must agree: sort those by name.
std::vector<Parameter*> with_shared_by_name(std::vector<Parameter*> params) {
  std::vector<size_t> places;
  std::vector<Parameter*> shared;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->placement().partial_axes.contains(Axis::kPp)) continue;
    places.push_back(i);
    shared.push_back(params[i]);
  }
  std::sort(shared.begin(), shared.end(), [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); });
  for (size_t i = 0; i < places.size(); ++i) params[places[i]] = shared[i];
  return params;
}

}  // namespace

BucketPlan plan_buckets(const std::vector<Parameter*>& registered, const BucketRules& rules) {
  const std::vector<Parameter*> params = with_shared_by_name(registered);
  std::vector<OpenBuffer> open;
  std::vector<std::pair<size_t, Bucket>> closed;
  for (size_t i = params.size(); i-- > 0;) {
    Parameter* param = params[i];
    if (!param->is_trainable()) continue;
    const BufferSpec wanted{.dtype = param->value().scalar_type(),
                            .grad_dtype = param->grad_dtype(),
                            .axes = param->placement().partial_axes.without({Axis::kTp, Axis::kEtp}),
                            .pipeline_ranks = param->placement().pipeline_ranks,
                            .cut = rules.cut ? rules.cut(*param) : BucketCut::kAnywhere};
    auto found = std::find_if(open.begin(), open.end(), [&](const OpenBuffer& one) {
      return one.spec().dtype == wanted.dtype && one.spec().axes == wanted.axes &&
             one.spec().pipeline_ranks == wanted.pipeline_ranks && one.spec().cut == wanted.cut;
    });
    if (found == open.end()) {
      open.emplace_back(wanted, open.size(), rules);
      found = std::prev(open.end());
    }
    found->add(param, params.size() - i);
    if (found->is_full()) closed.push_back(found->close());
  }
  BucketPlan plan;
  for (OpenBuffer& one : open) {
    if (!one.is_empty()) closed.push_back(one.close());
    plan.buffers.push_back(one.spec());
  }
  std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, bucket] : closed) plan.buckets.push_back(std::move(bucket));
  return plan;
}

ReductionGroups reduction_groups(const AxisSet& partial_axes, const Groups& groups) {
  const AxisSet axes = partial_axes.without(Axis::kPp);  // data_parallel.h sums over pipeline stages
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
    // Padding travels too and must stay finite.
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
    // Sums finished runs across copies while later buckets are being scattered.
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
