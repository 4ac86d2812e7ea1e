#include "parallel/fsdp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/error.h"
#include "device/transfer.h"
#include "nn/function.h"

namespace megalith {
namespace {

// Parts with whole gradients: one being written, the others being reduced.
constexpr size_t kWholeParts = 2;

// No gradient would be summed over any rank: a frozen weight has the axes of a trained one.
bool is_moved_by_no_gradient(const Parameter& param) {
  return !param.is_trainable() && param.placement().partial_axes.empty();
}

struct UnitCall {
  Fsdp* fsdp;
  size_t unit;
};

// New tensors with the same memory: a Function's outputs must not be its inputs.
torch::autograd::variable_list passed_on(at::TensorList tensors) {
  torch::autograd::variable_list result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.variable_data());
  return result;
}

// Passes tensors that need autograd through the Function, which does not look into vectors; true if there were any.
template <typename Function>
bool pass_through(std::vector<at::Tensor>& tensors, const UnitCall& call) {
  std::vector<size_t> chosen;
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !tensors[i].requires_grad()) continue;
    chosen.push_back(i);
    inputs.push_back(tensors[i]);
  }
  if (chosen.empty()) return false;
  const auto outputs = Function::apply(at::TensorList(inputs), call);
  for (size_t i = 0; i < chosen.size(); ++i) tensors[chosen[i]] = outputs[i];
  return true;
}

}  // namespace

// The identity at a unit's outputs: its first node in backward.
struct BeforeUnitBackward : torch::autograd::Function<BeforeUnitBackward> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, at::TensorList outputs,
                                                const UnitCall& call) {
    node->set_materialize_grads(false);
    hold(node, call);
    return passed_on(outputs);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 torch::autograd::variable_list gradients) {
    const UnitCall& call = held<UnitCall>(node);
    call.fsdp->enter_backward(call.unit);
    gradients.emplace_back();
    return gradients;
  }
};

// The identity at its inputs: its last node in backward.
struct AfterUnitBackward : torch::autograd::Function<AfterUnitBackward> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, at::TensorList inputs,
                                                const UnitCall& call) {
    node->set_materialize_grads(false);
    hold(node, call);
    return passed_on(inputs);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 torch::autograd::variable_list gradients) {
    const UnitCall& call = held<UnitCall>(node);
    call.fsdp->after_backward(call.unit);
    gradients.emplace_back();
    return gradients;
  }
};

Fsdp::Fsdp(const std::vector<Parameter*>& params, const std::vector<Block>& blocks, const Groups& groups,
           const FsdpOptions& options)
    : groups_(groups), options_(options), pool_(memory_) {
  MEGALITH_CHECK(!params.empty(), "FSDP without parameters");
  const at::Device device = options_.device.value_or(params[0]->value().device());
  MEGALITH_CHECK(device != at::kMeta || options_.device,
                 "FSDP of parameters without memory needs to be told the device");
  if (options_.cpu_offload && has_own_memory(device)) host_ = std::make_unique<HostRuns>(device);
  for (Parameter* param : params) {
    if (!is_moved_by_no_gradient(*param)) continue;
    undivided_.push_back(param);
    const at::Tensor& value = param->value();
    if (value.is_meta()) param->place_in(at::zeros(value.sizes(), value.options().device(device)));
  }
  const std::set<const Parameter*> undivided(undivided_.begin(), undivided_.end());
  // Parameters of several blocks or stages belong to the root.
  std::map<const Parameter*, int> num_blocks;
  std::map<std::string, int> num_uses;
  std::vector<std::vector<Parameter*>> members;
  for (const Block& block : blocks) {
    auto& own = members.emplace_back();
    for (const Module* module : block.modules) {
      module->for_each_parameter([&](Parameter& param) {
        if (!undivided.contains(&param)) own.push_back(&param);
      });
    }
    for (const Parameter* param : own) ++num_blocks[param];
    for (const std::string& name : block.uses) ++num_uses[name];
  }
  const auto is_shared = [&](const Parameter* param) {
    return num_blocks[param] + num_uses[param->name()] > 1 || param->placement().partial_axes.contains(Axis::kPp);
  };
  const auto make_unit = [&](const std::string& name, const std::vector<Parameter*>& own) {
    return std::make_unique<FsdpUnit>(name, own, groups_, device, memory_, options_.part_elements, host_.get());
  };
  std::set<const Parameter*> in_units;
  for (const Block& block : blocks) {
    if (block.index == 0) {
      if (!places_.empty()) places_.back().is_last = true;
      is_in_backward_.push_back(false);
    }
    MEGALITH_CHECK(!is_in_backward_.empty(), "a chunk begins with block {}", block.index);
    place_of_[block.modules.at(0)] = places_.size();
    Place& place = places_.emplace_back();
    std::vector<Parameter*>& own = members[places_.size() - 1];
    std::erase_if(own, is_shared);
    int64_t num_elements = 0;
    for (const Parameter* param : own) num_elements += param->placement().num_local_elements();
    if (!block.is_layer && num_elements < options_.part_elements) continue;
    place.unit = units_.size();
    units_.push_back({.unit = make_unit(block.name, own),
                      .chunk = is_in_backward_.size() - 1,
                      .is_layer = block.is_layer});
    in_units.insert(own.begin(), own.end());
  }
  if (!places_.empty()) places_.back().is_last = true;
  for (size_t i = places_.size(); i-- > 1;) {
    if (places_[i - 1].is_last) continue;
    places_[i - 1].next = places_[i].unit ? places_[i].unit : places_[i].next;
  }
  std::vector<Parameter*> rest;
  for (Parameter* param : params) {
    if (!in_units.contains(param) && !undivided.contains(param)) rest.push_back(param);
  }
  root_ = make_unit("root", rest);
  root_->set_hooks([this](size_t part) { root_->open_part(part, pool_); }, [] {});
  for (size_t i = 0; i < units_.size(); ++i) {
    units_[i].unit->set_hooks([this, i](size_t part) { open_part(i, part); },
                              [this, i] {
                                if (units_[i].is_in_backward && deferred_ == nullptr) reduce_parts(i, /*all=*/false);
                              });
  }
  list_parts(params);
}

void Fsdp::list_parts(const std::vector<Parameter*>& params) {
  std::map<const Parameter*, const FsdpPart*> found;
  for_each_unit([&](FsdpUnit& unit) {
    for (const FsdpPart& part : unit.parts()) found[part.parameter] = &part;
  });
  MEGALITH_CHECK(found.size() + undivided_.size() == params.size(), "blocks hold {} parameters, the model {}",
                 found.size() + undivided_.size(), params.size());
  for (Parameter* param : params) {
    if (!found.contains(param) || param->is_packed()) {  // what is packed is read and written whole
      model_parts_.push_back(whole_parameters({param})[0]);
      continue;
    }
    const FsdpPart& part = *found.at(param);
    if (param->is_trainable()) runs_.push_back({param, part.ranks, part.first_run, part.run_elements});
    if (part.range.size() == 0) continue;
    model_parts_.push_back({.parameter = param,
                            .range = part.range,
                            .model = part.model,
                            .grad = part.grad,
                            .replica_axes = part.replica_axes});
    if (param->is_trainable()) parts_.push_back(model_parts_.back());
  }
}

void Fsdp::for_each_unit(const std::function<void(FsdpUnit&)>& visit) {
  for (auto one = units_.rbegin(); one != units_.rend(); ++one) visit(*one->unit);
  visit(*root_);
}

int64_t Fsdp::parameter_bytes() const {
  int64_t bytes = root_->parameter_bytes();
  for (const Unit& one : units_) bytes += one.unit->parameter_bytes();
  for (const Parameter* param : undivided_) bytes += param->num_bytes();
  return bytes;
}

int64_t Fsdp::gradient_bytes() const {
  int64_t bytes = root_->gradient_bytes();
  for (const Unit& one : units_) bytes += one.unit->gradient_bytes();
  return bytes;
}

int64_t Fsdp::host_bytes() const {
  return host_ ? parameter_bytes() + gradient_bytes() + host_->landing_bytes() : 0;
}

int64_t Fsdp::whole_parameter_bytes_bound() const {
  int64_t all = 0, pair = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    const int64_t bytes = units_[i].unit->whole_parameter_bytes();
    all += bytes;
    pair = std::max(pair, bytes + (has_before(i) ? units_[i - 1].unit->whole_parameter_bytes() : 0));
  }
  return root_->whole_parameter_bytes() + (options_.reshard_after_forward ? pair : all);
}

bool Fsdp::has_before(size_t unit) const { return unit > 0 && units_[unit - 1].chunk == units_[unit].chunk; }

bool Fsdp::gathers_ahead(size_t unit) const {
  return options_.overlap && has_before(unit) && units_[unit].is_layer && units_[unit - 1].is_layer;
}

int64_t Fsdp::gradient_peak(size_t index) const {
  const auto last_part = [&](size_t unit) {
    const std::vector<int64_t> parts = units_[unit].unit->whole_gradient_bytes();
    return parts.empty() ? 0 : parts.back();
  };
  const bool is_pipelined = groups_.pp->size() > 1;
  int64_t reduced = 0;
  if (index + 1 < units_.size() && gathers_ahead(index + 1)) {
    reduced = last_part(index + 1);
  } else if (is_pipelined && units_[index].is_layer) {
    // Another chunk's backward may have come before.
    for (size_t i = 0; i < units_.size(); ++i) reduced = std::max(reduced, has_before(i) ? 0 : last_part(i));
  }
  std::vector<int64_t> parts = units_[index].unit->whole_gradient_bytes();
  if (is_pipelined || units_[index].unit->has_experts_apart()) {
    parts = {std::accumulate(parts.begin(), parts.end(), int64_t{0})};
  }
  int64_t peak = 0;
  for (const int64_t bytes : parts) {
    // With a bf16 copy, a part is freed when the next one is taken.
    peak = std::max(peak, options_.grad_reduce_in_bf16 ? (reduced + 3 * bytes) / 2 : reduced + bytes);
    reduced = bytes;
  }
  return peak;
}

int64_t Fsdp::whole_gradient_bytes_bound() const {
  int64_t largest = 0, all = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    largest = std::max(largest, gradient_peak(i));
    for (const int64_t bytes : units_[i].unit->whole_gradient_bytes()) all += bytes;
  }
  if (deferred_ == nullptr) return root_gradient_bytes() + largest;
  return root_gradient_bytes() + (options_.grad_reduce_in_bf16 ? all + all / 2 : all);
}

int64_t Fsdp::whole_bytes_bound() const {
  if (!options_.reshard_after_forward || deferred_ != nullptr) {
    return whole_parameter_bytes_bound() + whole_gradient_bytes_bound();
  }
  // Without gradients, in forward.
  int64_t most = whole_parameter_bytes_bound() - root_->whole_parameter_bytes();
  for (size_t i = 0; i < units_.size(); ++i) {
    int64_t bytes = units_[i].unit->whole_parameter_bytes() + gradient_peak(i);
    if (gathers_ahead(i)) bytes += units_[i - 1].unit->whole_parameter_bytes();
    most = std::max(most, bytes);
  }
  return root_->whole_parameter_bytes() + root_gradient_bytes() + most;
}

int64_t Fsdp::root_gradient_bytes() const {
  int64_t bytes = 0;
  for (const int64_t part : root_->whole_gradient_bytes()) bytes += part;
  return options_.grad_reduce_in_bf16 ? bytes + bytes / 2 : bytes;
}

void Fsdp::reset_peak_memory() {
  memory_.parameters.peak = memory_.parameters.now;
  memory_.gradients.peak = memory_.gradients.now;
}

// ---- the step ----

void Fsdp::begin_step() {
  reshard_all();
  for_each_unit([](FsdpUnit& unit) {
    unit.begin_step();
    for (Parameter* param : unit.parameters()) param->begin_step();
  });
  is_in_step_ = true;
}

void Fsdp::begin_microbatch(bool is_last) {
  MEGALITH_CHECK(is_in_step_, "a microbatch outside a step");
  if (groups_.pp->size() == 1) finish_backward([](const Unit&) { return 0; });
  is_last_microbatch_ = is_last;
  has_begun_microbatch_ = true;
}

void Fsdp::finish_step() {
  finish_backward([](const Unit&) { return 0; });
  while (!reductions_.empty()) finish_oldest_reduction();
  if (std::exchange(has_begun_microbatch_, false)) {
    std::vector<size_t> parts;
    while (const auto part = root_->next_part(/*all=*/true)) {
      if (!root_->is_open(*part)) root_->open_part(*part, pool_);
      root_->reduce_part(*part, pool_, options_.grad_reduce_in_bf16);
      parts.push_back(*part);
    }
    for (const size_t part : parts) root_->finish_part(part, pool_);
  }
  if (host_) host_->settle();
  for_each_unit([&](FsdpUnit& unit) { unit.finish_replica_sums(options_.grad_reduce_in_bf16); });
  reshard_all();
  pool_.release();
  is_in_step_ = false;
  sum_over_model_ranks(parts_, groups_);
}

void Fsdp::publish() { reshard_all(); }

void Fsdp::reshard_all() {
  for_each_unit([](FsdpUnit& unit) { unit.reshard(); });
}

void Fsdp::free_units_outside(std::optional<size_t> chunk) {
  for (const Unit& one : units_) {
    if (options_.reshard_after_forward && chunk != one.chunk) one.unit->reshard();
  }
}

std::vector<at::Tensor> Fsdp::run(const Block& block, const std::vector<at::Tensor>& inputs, const BlockBody& body) {
  const auto found = place_of_.find(block.modules.at(0));
  MEGALITH_CHECK(found != place_of_.end(), "block {} of another model", block.name);
  const Place& place = places_[found->second];
  FsdpUnit* const unit = place.unit ? units_[*place.unit].unit.get() : root_.get();
  if (block.index == 0) free_units_outside(std::nullopt);
  root_->gather();
  unit->gather();
  if (options_.overlap && place.next) units_[*place.next].unit->gather();
  root_->wait_until_whole();
  unit->wait_until_whole();

  std::vector<at::Tensor> outputs;
  bool is_recorded = false;
  if (place.unit && at::GradMode::is_enabled()) {
    const UnitCall call{this, *place.unit};
    std::vector<at::Tensor> passed = inputs;
    pass_through<AfterUnitBackward>(passed, call);
    outputs = body(passed);
    is_recorded = pass_through<BeforeUnitBackward>(outputs, call);
  } else {
    outputs = body(inputs);
  }
  if (is_recorded) {
    ++units_[*place.unit].num_awaiting;
    ++units_[*place.unit].num_unreduced;
  }

  if (place.unit) {
    const bool may_be_needed_at_once =
        *place.unit + 1 == units_.size() || units_[*place.unit + 1].chunk != units_[*place.unit].chunk;
    const bool stays = is_in_step_ && is_recorded && (may_be_needed_at_once || !options_.reshard_after_forward);
    if (!stays) unit->reshard();
  }
  if (!is_in_step_ && place.is_last) root_->reshard();
  // The previous microbatch's end has been reduced during the first block.
  while (block.index > 0 && !reductions_.empty()) finish_oldest_reduction();
  return outputs;
}

void Fsdp::enter_backward(size_t index) {
  const size_t chunk = units_[index].chunk;
  if (!is_in_backward_[chunk]) {
    is_in_backward_[chunk] = true;
    free_units_outside(chunk);
    // At the end of this pass, within it: weight gradients may be deferred.
    torch::autograd::Engine::get_default_engine().queue_callback([this, chunk, left = units_[index].num_awaiting - 1] {
      finish_backward([&](const Unit& unit) { return unit.chunk == chunk ? left : unit.num_awaiting; });
      is_in_backward_[chunk] = false;
    });
  }
  before_backward(index);
}

void Fsdp::before_backward(size_t index) {
  Unit& one = units_[index];
  MEGALITH_CHECK(is_in_step_, "backward of {} outside a step", one.unit->name());
  one.unit->gather();
  if (gathers_ahead(index) && units_[index - 1].num_awaiting > 0) units_[index - 1].unit->gather();
  one.unit->wait_until_whole();
  one.is_in_backward = true;
}

void Fsdp::after_backward(size_t index) {
  Unit& one = units_[index];
  one.is_in_backward = false;
  --one.num_awaiting;
  if (options_.reshard_after_forward || one.num_awaiting == 0) one.unit->reshard();
  const auto reduce = [this, index] {
    --units_[index].num_unreduced;
    reduce_parts(index, /*all=*/true);
    units_[index].unit->begin_pass();
  };
  if (deferred_ != nullptr && deferred_->is_deferring())
    deferred_->defer(reduce);
  else
    reduce();
}

void Fsdp::open_part(size_t index, size_t part) {
  // A one-layer model meets its own reduction of the previous microbatch; blocks other than layers are too large to.
  const auto has_no_room = [&] {
    return reductions_.size() >= kWholeParts || !units_[index].is_layer || !units_[reductions_.front().unit].is_layer ||
           std::ranges::any_of(reductions_,
                               [&](const Reduction& one) { return one.unit == index && one.part == part; });
  };
  while (!reductions_.empty() && has_no_room()) finish_oldest_reduction();
  units_[index].unit->open_part(part, pool_);
}

void Fsdp::reduce_parts(size_t index, bool all) {
  FsdpUnit& unit = *units_[index].unit;
  while (const auto part = unit.next_part(all)) {
    if (!unit.is_open(*part)) open_part(index, *part);
    unit.reduce_part(*part, pool_, options_.grad_reduce_in_bf16);
    const int64_t num_passes_left = units_[index].num_unreduced - (units_[index].is_in_backward ? 1 : 0);
    reductions_.push_back({index, *part, is_last_microbatch_ && num_passes_left == 0});
    while (!options_.overlap && !reductions_.empty()) finish_oldest_reduction();
  }
}

void Fsdp::finish_oldest_reduction() {
  const Reduction oldest = reductions_.front();
  reductions_.pop_front();
  const Unit& one = units_[oldest.unit];
  one.unit->finish_part(oldest.part, pool_);
  // Host runs are complete only at the step's end.
  if (oldest.is_last && !host_) {
    one.unit->start_replica_sum(oldest.part, options_.grad_reduce_in_bf16);
  }
}

void Fsdp::finish_backward(const std::function<int64_t(const Unit& unit)>& num_left) {
  for (size_t index = units_.size(); index-- > 0;) {
    while (units_[index].num_awaiting > num_left(units_[index])) {
      if (!units_[index].is_in_backward) before_backward(index);
      after_backward(index);
    }
  }
}

// ---- whole parameters ----

void Fsdp::initialise(uint64_t seed, bool only_adapters) {
  fill_units([=](const std::vector<Parameter*>& params) {
    for (Parameter* param : params) {
      if (!only_adapters || param->options().is_adapter) param->initialise(seed);
    }
  });
  for (Parameter* param : undivided_) {
    if (!only_adapters) param->initialise(seed);
  }
}

void Fsdp::fill_units(const UnitVisitor& fill) {
  for_each_unit([&](FsdpUnit& unit) {
    unit.make_whole_zero();
    fill(unit.parameters());
    unit.keep_run();
    unit.reshard();
  });
}

void Fsdp::visit_units(const UnitVisitor& visit) {
  for_each_unit([&](FsdpUnit& unit) {
    unit.wait_until_whole();
    visit(unit.parameters());
    unit.reshard();
  });
}

int64_t num_sharding_ranks(const Parameter& param, const Groups& groups) {
  return is_moved_by_no_gradient(param) ? 1 : sharding_groups(param, groups).shard->size();
}

}  // namespace megalith
