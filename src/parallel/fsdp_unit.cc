#include "parallel/fsdp_unit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "nn/packed_weight.h"

namespace megalith {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

// All views see the change. An accelerator's allocator reuses memory in stream order, so earlier kernels may still read
// freed memory.
void resize_storage(const at::Tensor& tensor, int64_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto size = static_cast<size_t>(bytes);
  storage->set_data_ptr_noswap(bytes == 0 ? at::DataPtr(nullptr, storage->device())
                                          : storage->allocator()->allocate(size));
  storage->set_nbytes(size);
}

// The gradient's sum over model ranks comes later (data_parallel.h).
AxisSet sharded_axes(const Parameter& param) {
  return param.placement().partial_axes.without({Axis::kTp, Axis::kEtp, Axis::kPp});
}

}  // namespace

at::Tensor GradientPool::take(int64_t num_elements, const at::TensorOptions& options) {
  for (auto candidate = free_.begin(); candidate != free_.end(); ++candidate) {
    const at::Tensor& buffer = candidate->buffer;
    const bool fits = num_elements <= buffer.numel() && buffer.numel() - num_elements <= num_elements / 4;
    if (!fits || buffer.scalar_type() != options.dtype().toScalarType()) continue;
    candidate->wait();
    at::Tensor found = std::move(candidate->buffer);
    free_.erase(candidate);
    return found;
  }
  release();  // other sizes would only add to the peak
  at::Tensor buffer = at::empty({num_elements}, options);
  memory_.gradients.add(bytes_of(buffer));
  return buffer;
}

void GradientPool::Free::wait() const {
  if (read) read->make_wait(current_stream(buffer.device()));
}

void GradientPool::give_back(at::Tensor buffer, std::optional<StreamEvent> read) {
  free_.push_back({std::move(buffer), std::move(read)});
}

void GradientPool::release() {
  for (const Free& one : free_) {
    one.wait();
    memory_.gradients.add(-bytes_of(one.buffer));
  }
  free_.clear();
}

ReductionGroups sharding_groups(const Parameter& param, const Groups& groups) {
  return reduction_groups(sharded_axes(param), groups);
}

FsdpUnit::FsdpUnit(std::string name, const std::vector<Parameter*>& params, const Groups& groups, at::Device device,
                   FsdpMemory& memory, int64_t part_elements, HostRuns* host)
    : name_(std::move(name)),
      params_(params),
      device_(device),
      memory_(memory),
      host_(host),
      copied_(host != nullptr ? device : at::Device(at::kCPU)) {
  // Experts after dense parameters, as in forward; runs of what stages share are equal on all of them.
  using Kind = std::tuple<bool, at::ScalarType, std::string, std::vector<int>>;  // is frozen, dtype, axes, stages
  std::map<Kind, std::vector<Parameter*>> kinds;
  for (Parameter* param : params_) {
    const Placement& placement = param->placement();
    const std::string axes = placement.partial_axes.without({Axis::kTp, Axis::kEtp}).text();
    kinds[{!param->is_trainable(), param->stored().scalar_type(), axes, placement.pipeline_ranks}].push_back(param);
  }
  std::vector<std::pair<std::string, std::vector<Parameter*>>> flats;
  for (auto& [kind, members] : kinds) {
    const auto& [is_frozen, dtype, axes, stages] = kind;
    std::string label = name_;
    if (kinds.size() > 1) label += fmt::format(" {}{}", is_frozen ? "frozen " : "", c10::toString(dtype));
    if (axes != std::get<2>(kinds.begin()->first)) label += " " + axes;
    // Stages register what they share in different orders.
    const auto comes_first = [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); };
    if (members[0]->placement().partial_axes.contains(Axis::kPp)) std::ranges::sort(members, comes_first);
    int64_t room = 0;
    for (Parameter* param : members) {
      if (room <= 0) {
        flats.emplace_back(label, std::vector<Parameter*>());
        room = part_elements;
      }
      flats.back().second.push_back(param);
      room -= param->stored().numel();
    }
  }
  for (const auto& [label, members] : flats) {
    const bool is_alone = std::ranges::count(flats, label, [](const auto& flat) { return flat.first; }) == 1;
    add_flat(members, is_alone ? label : fmt::format("{} part {}", label, flats_.size()), groups);
  }
  next_part_ = flats_.size();
  std::vector<FsdpPart> in_order;
  for (const Parameter* param : params_) {
    in_order.push_back(
        *std::find_if(parts_.begin(), parts_.end(), [&](const FsdpPart& part) { return part.parameter == param; }));
  }
  parts_ = std::move(in_order);
}

void FsdpUnit::add_flat(const std::vector<Parameter*>& params, std::string label, const Groups& groups) {
  Flat flat{.label = std::move(label),
            .params = params,
            .groups = sharding_groups(*params[0], groups),
            .is_trainable = params[0]->is_trainable()};
  int64_t total = 0;
  for (const Parameter* param : params) total += param->stored().numel();
  flat.run_elements = div_up(total, static_cast<int64_t>(flat.ranks().size()));
  flat.num_elements = flat.run_elements * flat.ranks().size();
  const auto options = at::TensorOptions().dtype(params[0]->stored().scalar_type()).device(device_);
  flat.whole = at::empty({flat.num_elements}, options);
  const auto make_run = [&](at::ScalarType dtype) {
    if (host_ != nullptr) return host_->make_run(flat.run_elements, dtype);
    return at::zeros({flat.run_elements}, options.dtype(dtype));
  };
  flat.run = make_run(flat.whole.scalar_type());
  if (flat.is_trainable) flat.grad_run = make_run(params[0]->grad_dtype());
  const int64_t run_begin = flat.run_elements * flat.ranks().rank(), run_end = run_begin + flat.run_elements;
  int64_t offset = 0;
  for (Parameter* param : params) {
    const Placement& placement = param->placement();
    const at::Tensor stored = param->stored();
    const int64_t count = stored.numel();
    FsdpPart part{.parameter = param,
                  .ranks = flat.groups.shard.get(),
                  .replica_axes = placement.replica_axes.without(sharded_axes(*param)),
                  .range = {},
                  .first_run = -offset,
                  .run_elements = flat.run_elements};
    if (flat.groups.replicate_axis) part.replica_axes.insert(*flat.groups.replicate_axis);
    const int64_t begin = std::max(run_begin, offset), end = std::min(run_end, offset + count);
    if (begin < end) {
      part.range = {begin - offset, end - offset};
      part.model = flat.run.narrow(0, begin - run_begin, end - begin);
      if (flat.is_trainable) part.grad = flat.grad_run.narrow(0, begin - run_begin, end - begin);
      if (!stored.is_meta()) {
        part.model.copy_(stored.reshape({-1}).narrow(0, part.range.begin, part.range.size()));
      }
    }
    const auto keep = [range = part.range, run = part.model](const at::Tensor& bytes) {
      if (run.defined()) run.copy_(bytes.narrow(0, range.begin, range.size()));
    };
    const auto while_here = [this](const std::function<void()>& read) {
      wait_until_whole();
      read();
      reshard();
    };
    param->place_stored_in(flat.whole.narrow(0, offset, count), {.keep = keep, .while_here = while_here});
    parts_.push_back(std::move(part));
    offset += count;
  }
  resize_storage(flat.whole, 0);
  flats_.push_back(std::move(flat));
}

int64_t FsdpUnit::parameter_bytes() const {
  int64_t bytes = 0;
  for (const Flat& flat : flats_) bytes += bytes_of(flat.run);
  for (const Parameter* param : params_) bytes += param->num_bytes() - bytes_of(param->stored());  // tables
  return bytes;
}

int64_t FsdpUnit::gradient_bytes() const {
  int64_t bytes = 0;
  for (const Flat& flat : flats_) bytes += flat.is_trainable ? bytes_of(flat.grad_run) : 0;
  return bytes;
}

int64_t FsdpUnit::whole_parameter_bytes() const {
  int64_t bytes = 0;
  for (const Flat& flat : flats_) bytes += bytes_of(flat.whole);
  return bytes;
}

bool FsdpUnit::has_experts_apart() const {
  return std::ranges::any_of(params_, [](const Parameter* param) {
    return param->is_trainable() && param->placement().partial_axes.contains(Axis::kEdp);
  });
}

std::vector<int64_t> FsdpUnit::whole_gradient_bytes() const {
  std::vector<int64_t> bytes;
  for (auto flat = flats_.rbegin(); flat != flats_.rend(); ++flat) {
    if (flat->is_trainable) bytes.push_back(bytes_of(flat->grad_run) * flat->ranks().size());
  }
  return bytes;
}

void FsdpUnit::allocate_whole(Flat& flat) {
  const int64_t bytes = bytes_of(flat.whole);
  resize_storage(flat.whole, bytes);
  memory_.parameters.add(bytes);
}

at::Tensor FsdpUnit::own_run_in(const Flat& flat, const at::Tensor& whole) {
  return whole.narrow(0, flat.run_elements * flat.ranks().rank(), flat.run_elements);
}

void FsdpUnit::gather() {
  if (state_ != State::kSharded) return;
  for (Flat& flat : flats_) allocate_whole(flat);
  if (host_ != nullptr) {
    // Overlaps the current stream's work, but after the memory's previous user.
    host_->follow_current();
    const StreamScope scope(host_->copies());
    for (Flat& flat : flats_) {
      const at::Tensor own = own_run_in(flat, flat.whole);
      own.copy_(flat.run, /*non_blocking=*/true);
      flat.gathering = flat.ranks().all_gather(flat.whole, own, flat.label);
    }
    copied_.record(host_->copies());
  } else {
    for (Flat& flat : flats_) flat.gathering = flat.ranks().all_gather(flat.whole, flat.run, flat.label);
  }
  state_ = State::kGathering;
}

void FsdpUnit::wait_until_whole() {
  gather();
  if (state_ == State::kWhole) return;
  if (host_ != nullptr) copied_.make_wait(current_stream(device_));
  for (Flat& flat : flats_) std::exchange(flat.gathering, {}).wait();
  state_ = State::kWhole;
}

void FsdpUnit::reshard() {
  if (state_ == State::kSharded) return;
  wait_until_whole();
  for (Flat& flat : flats_) {
    resize_storage(flat.whole, 0);
    memory_.parameters.add(-bytes_of(flat.whole));
  }
  state_ = State::kSharded;
}

void FsdpUnit::make_whole_zero() {
  reshard();
  for (Flat& flat : flats_) {
    allocate_whole(flat);
    flat.whole.zero_();
  }
  state_ = State::kWhole;
}

void FsdpUnit::keep_run() {
  MEGALITH_CHECK(state_ == State::kWhole, "{} is sharded", name_);
  for (Flat& flat : flats_) flat.run.copy_(own_run_in(flat, flat.whole));
}

FsdpUnit::~FsdpUnit() {
  for (Parameter* param : params_) {
    param->set_open_hook({});
    param->set_ready_hook({});
  }
}

void FsdpUnit::set_hooks(PartHook opens, const std::function<void()>& completes) {
  for (size_t part = 0; part < flats_.size(); ++part) {
    for (Parameter* param : flats_[part].params) {
      param->set_open_hook([opens, part] { opens(part); });
      param->set_ready_hook([this, part, completes](Parameter&) {
        if (++flats_[part].num_complete == flats_[part].params.size()) completes();
      });
    }
  }
}

void FsdpUnit::begin_step() {
  for (Flat& flat : flats_) flat.has_gradient = flat.is_replica_sum_under_way = false;
  begin_pass();
}

void FsdpUnit::begin_pass() {
  next_part_ = flats_.size();
  for (Flat& flat : flats_) flat.num_complete = 0;
}

void FsdpUnit::open_part(size_t part, GradientPool& pool) {
  Flat& flat = flats_[part];
  MEGALITH_CHECK(part < next_part_, "a gradient of {} comes after its reduction", flat.label);
  flat.grad_buffer = pool.take(flat.num_elements, flat.whole.options().dtype(flat.grad_run.scalar_type()));
  flat.grad_whole = flat.grad_buffer.narrow(0, 0, flat.num_elements);
  int64_t offset = 0;
  for (Parameter* param : flat.params) {
    const int64_t count = param->placement().num_local_elements();
    param->attach_grad_buffer(flat.grad_whole.narrow(0, offset, count).view(param->placement().local_shape));
    offset += count;
  }
  flat.grad_whole.narrow(0, offset, flat.num_elements - offset).zero_();  // the padding is reduced too
}

std::optional<size_t> FsdpUnit::next_part(bool all) const {
  for (size_t part = next_part_; part-- > 0;) {
    const Flat& flat = flats_[part];
    if (!flat.is_trainable) continue;
    if (all || flat.num_complete == flat.params.size()) return part;
    break;
  }
  return std::nullopt;
}

void FsdpUnit::reduce_part(size_t part, GradientPool& pool, bool in_bf16) {
  Flat& flat = flats_[part];
  next_part_ = part;
  for (Parameter* param : flat.params) {
    param->finish_step();  // zeros without contributions
    param->detach_grad_buffer();
  }
  at::Tensor summand = std::exchange(flat.grad_whole, {});
  if (in_bf16 && summand.scalar_type() == at::kFloat) {
    summand = summand.to(at::kBFloat16);
    memory_.gradients.add(bytes_of(summand));
    pool.give_back(std::exchange(flat.grad_buffer, {}));
  }
  flat.reduced = own_run_in(flat, summand);
  flat.reduction = flat.ranks().reduce_scatter(flat.reduced, summand, ReduceOp::kSum, flat.label);
}

void FsdpUnit::finish_part(size_t part, GradientPool& pool) {
  Flat& flat = flats_[part];
  MEGALITH_CHECK(flat.reduced.defined(), "no reduction of {} is under way", flat.label);
  std::exchange(flat.reduction, {}).wait();
  std::optional<StreamEvent> read;
  if (host_ != nullptr) {
    read = host_->land(flat.reduced, flat.grad_run, /*replaces=*/!flat.has_gradient);
  } else if (flat.has_gradient) {
    flat.grad_run.add_(flat.reduced);
  } else {
    flat.grad_run.copy_(flat.reduced);
  }
  if (flat.grad_buffer.defined()) {
    pool.give_back(std::exchange(flat.grad_buffer, {}), std::move(read));
  } else {
    if (read) flat.reduced.record_stream(host_->copies());  // freed on this stream, read on that one
    memory_.gradients.add(-flat.num_elements * static_cast<int64_t>(c10::elementSize(at::kBFloat16)));
  }
  flat.reduced.reset();
  flat.has_gradient = true;
}

void FsdpUnit::start_replica_sum(size_t part, bool in_bf16) {
  Flat& flat = flats_[part];
  Group& replicas = *flat.groups.replicate;
  if (!flat.has_gradient) flat.grad_run.zero_();
  flat.is_replica_sum_under_way = true;
  if (replicas.size() == 1) return;
  flat.reduced =
      in_bf16 && flat.grad_run.scalar_type() == at::kFloat ? flat.grad_run.to(at::kBFloat16) : flat.grad_run;
  if (host_ != nullptr) flat.reduced = flat.reduced.to(device_);  // replicas reduce on the device
  flat.reduction = replicas.all_reduce(flat.reduced, ReduceOp::kSum, flat.label);
}

void FsdpUnit::finish_replica_sums(bool in_bf16) {
  for (size_t part = flats_.size(); part-- > 0;) {
    const Flat& flat = flats_[part];
    if (flat.is_trainable && !flat.is_replica_sum_under_way) start_replica_sum(part, in_bf16);
  }
  for (Flat& flat : flats_) {
    if (!flat.reduced.defined()) continue;
    std::exchange(flat.reduction, {}).wait();
    if (!flat.reduced.is_same(flat.grad_run)) flat.grad_run.copy_(flat.reduced);
    flat.reduced.reset();
  }
}

}  // namespace megalith
