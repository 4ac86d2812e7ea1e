#include "parallel/fsdp.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "device/transfer.h"
#include "nn/function.h"

namespace megalith {
namespace {

// Parts with whole gradients: one being written, the others being reduced.
constexpr size_t kWholeParts = 2;

// Axes along which other ranks hold the same run: the parameter's, minus those sharded here.
AxisSet replica_axes_of_run(const Parameter& param) {
  AxisSet axes(Axis::kDpReplicate);
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis != Axis::kDp && axis != Axis::kCp && param.placement().replica_axes.contains(axis)) axes.insert(axis);
  }
  return axes;
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
    call.fsdp->before_backward(call.unit);
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
  // Parameters of several blocks belong to the root.
  std::map<const Parameter*, int> num_blocks;
  std::map<std::string, int> num_uses;
  std::vector<std::vector<Parameter*>> members;
  for (const Block& block : blocks) {
    MEGALITH_CHECK(block.index == static_cast<int64_t>(members.size()), "block {} has index {}", members.size(),
                   block.index);
    auto& own = members.emplace_back();
    for (const Module* module : block.modules) {
      module->for_each_parameter([&](Parameter& param) { own.push_back(&param); });
    }
    for (const Parameter* param : own) ++num_blocks[param];
    for (const std::string& name : block.uses) ++num_uses[name];
  }
  Group& shard_group = *groups_.dp_shard_cp;
  const auto make_unit = [&](const std::string& name, const std::vector<Parameter*>& own) {
    return std::make_unique<FsdpUnit>(name, own, shard_group, device, memory_, options_.part_elements, host_.get());
  };
  std::set<const Parameter*> in_units;
  for (const Block& block : blocks) {
    Place& place = places_.emplace_back();
    std::vector<Parameter*>& own = members[places_.size() - 1];
    std::erase_if(own, [&](const Parameter* param) { return num_blocks[param] + num_uses[param->name()] > 1; });
    int64_t num_elements = 0;
    for (const Parameter* param : own) num_elements += param->placement().num_local_elements();
    if (!block.is_layer && num_elements < options_.part_elements) continue;
    place.unit = units_.size();
    units_.push_back({make_unit(block.name, own), block.is_layer});
    in_units.insert(own.begin(), own.end());
  }
  for (size_t i = places_.size(); i-- > 1;) {
    places_[i - 1].next = places_[i].unit ? places_[i].unit : places_[i].next;
  }
  std::vector<Parameter*> rest;
  for (Parameter* param : params) {
    if (!in_units.contains(param)) rest.push_back(param);
  }
  root_ = make_unit("root", rest);
  root_->set_hooks([this](size_t part) { root_->open_part(part, pool_); }, [] {});
  for (size_t i = 0; i < units_.size(); ++i) {
    units_[i].unit->set_hooks([this, i](size_t part) { open_part(i, part); },
                              [this, i] {
                                if (units_[i].is_in_backward) reduce_parts(i, /*all=*/false);
                              });
  }
  list_parts(params);
}

void Fsdp::list_parts(const std::vector<Parameter*>& params) {
  std::map<const Parameter*, const FsdpPart*> found;
  for_each_unit([&](FsdpUnit& unit) {
    for (const FsdpPart& part : unit.parts()) found[part.parameter] = &part;
  });
  MEGALITH_CHECK(found.size() == params.size(), "blocks hold {} parameters, the model {}", found.size(), params.size());
  for (Parameter* param : params) {
    const FsdpPart& part = *found.at(param);
    if (param->is_trainable()) {
      runs_.push_back({param, groups_.dp_shard_cp.get(), part.first_run, part.run_elements});
    }
    if (part.range.size() == 0) continue;
    model_parts_.push_back({.parameter = param,
                            .range = part.range,
                            .model = part.model,
                            .grad = part.grad,
                            .replica_axes = replica_axes_of_run(*param)});
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
    pair = std::max(pair, bytes + (i == 0 ? 0 : units_[i - 1].unit->whole_parameter_bytes()));
  }
  return root_->whole_parameter_bytes() + (options_.reshard_after_forward ? pair : all);
}

bool Fsdp::gathers_ahead(size_t unit) const {
  return options_.overlap && unit > 0 && units_[unit].is_layer && units_[unit - 1].is_layer;
}

int64_t Fsdp::gradient_peak(size_t index) const {
  int64_t reduced = 0, peak = 0;
  if (index + 1 < units_.size() && gathers_ahead(index + 1)) {
    const std::vector<int64_t> parts = units_[index + 1].unit->whole_gradient_bytes();
    if (!parts.empty()) reduced = parts.back();
  }
  for (const int64_t bytes : units_[index].unit->whole_gradient_bytes()) {
    // With a bf16 copy, a part is freed when the next one is taken.
    peak = std::max(peak, options_.grad_reduce_in_bf16 ? (reduced + 3 * bytes) / 2 : reduced + bytes);
    reduced = bytes;
  }
  return peak;
}

int64_t Fsdp::whole_gradient_bytes_bound() const {
  int64_t largest = 0;
  for (size_t i = 0; i < units_.size(); ++i) largest = std::max(largest, gradient_peak(i));
  return root_gradient_bytes() + largest;
}

int64_t Fsdp::whole_bytes_bound() const {
  // Without gradients, in forward.
  int64_t most = whole_parameter_bytes_bound() - root_->whole_parameter_bytes();
  for (size_t i = 0; options_.reshard_after_forward && i < units_.size(); ++i) {
    int64_t bytes = units_[i].unit->whole_parameter_bytes() + gradient_peak(i);
    if (gathers_ahead(i)) bytes += units_[i - 1].unit->whole_parameter_bytes();
    most = std::max(most, bytes);
  }
  if (!options_.reshard_after_forward) most += whole_gradient_bytes_bound() - root_gradient_bytes();
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
  finish_backward();
  is_last_microbatch_ = is_last;
  has_begun_microbatch_ = true;
}

void Fsdp::finish_step() {
  finish_backward();
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
  for_each_unit([&](FsdpUnit& unit) { unit.finish_replica_sums(*groups_.dp_replicate, options_.grad_reduce_in_bf16); });
  reshard_all();
  pool_.release();
  is_in_step_ = false;
  sum_over_model_ranks(parts_, groups_);
}

void Fsdp::publish() { reshard_all(); }

void Fsdp::reshard_all() {
  for_each_unit([](FsdpUnit& unit) { unit.reshard(); });
}

std::vector<at::Tensor> Fsdp::run(const Block& block, const std::vector<at::Tensor>& inputs, const BlockBody& body) {
  const auto index = static_cast<size_t>(block.index);
  MEGALITH_CHECK(index < places_.size(), "block {} ({}) of {}", block.index, block.name, places_.size());
  const Place& place = places_[index];
  FsdpUnit* const unit = place.unit ? units_[*place.unit].unit.get() : root_.get();
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
  if (is_recorded) ++units_[*place.unit].num_awaiting;

  if (place.unit) {
    const bool is_needed_at_once = *place.unit + 1 == units_.size();
    const bool stays = is_in_step_ && is_recorded && (is_needed_at_once || !options_.reshard_after_forward);
    if (!stays) unit->reshard();
  }
  if (!is_in_step_ && index + 1 == places_.size()) root_->reshard();
  // The previous microbatch's end has been reduced during the first block.
  while (index > 0 && !reductions_.empty()) finish_oldest_reduction();
  return outputs;
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
  one.unit->reshard();
  reduce_parts(index, /*all=*/true);
  one.unit->begin_pass();
  one.is_in_backward = false;
  --one.num_awaiting;
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
    const int64_t num_passes_left = units_[index].num_awaiting - (units_[index].is_in_backward ? 1 : 0);
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
    one.unit->start_replica_sum(oldest.part, *groups_.dp_replicate, options_.grad_reduce_in_bf16);
  }
}

void Fsdp::finish_backward() {
  for (size_t index = units_.size(); index-- > 0;) {
    while (units_[index].num_awaiting > 0) {
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

}  // namespace megalith
