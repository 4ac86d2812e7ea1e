#include "parallel/fsdp.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "device/transfer.h"
#include "nn/function.h"

namespace megalith {
namespace {

// Layers with whole gradients: one in backward, the others being reduced.
constexpr size_t kGradientUnits = 2;

// Axes along which other ranks hold the same run: the parameter's, minus those sharded here.
AxisSet replica_axes_of_run(const Parameter& param) {
  AxisSet axes(Axis::kDpReplicate);
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis != Axis::kDp && axis != Axis::kCp && param.placement().replica_axes.contains(axis)) axes.insert(axis);
  }
  return axes;
}

struct LayerCall {
  Fsdp* fsdp;
  size_t layer;
};

// New tensors with the same memory: a Function's outputs must not be its inputs.
torch::autograd::variable_list passed_on(at::TensorList tensors) {
  torch::autograd::variable_list result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.variable_data());
  return result;
}

// Passes the tensors that need autograd through the Function; true if there were any. apply() does not look into
// vectors.
template <typename Function>
bool pass_through(std::vector<at::Tensor>& tensors, const LayerCall& call) {
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

// The identity at a layer's outputs: its first node in backward.
struct BeforeUnitBackward : torch::autograd::Function<BeforeUnitBackward> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, at::TensorList outputs,
                                                const LayerCall& call) {
    node->set_materialize_grads(false);
    hold(node, call);
    return passed_on(outputs);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 torch::autograd::variable_list gradients) {
    const LayerCall& call = held<LayerCall>(node);
    call.fsdp->before_backward(call.layer);
    gradients.emplace_back();
    return gradients;
  }
};

// The identity at its inputs: its last node in backward.
struct AfterUnitBackward : torch::autograd::Function<AfterUnitBackward> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, at::TensorList inputs,
                                                const LayerCall& call) {
    node->set_materialize_grads(false);
    hold(node, call);
    return passed_on(inputs);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 torch::autograd::variable_list gradients) {
    const LayerCall& call = held<LayerCall>(node);
    call.fsdp->after_backward(call.layer);
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
  // Parameters of several layers belong to the root.
  std::map<const Parameter*, int> num_layers;
  std::vector<std::vector<Parameter*>> members;  // by block
  for (const Block& block : blocks) {
    MEGALITH_CHECK(block.index == static_cast<int64_t>(members.size()), "block {} has index {}", members.size(),
                   block.index);
    auto& own = members.emplace_back();
    for (const Module* module : block.modules) {
      module->for_each_parameter([&](Parameter& param) { own.push_back(&param); });
    }
    for (const Parameter* param : own) num_layers[param] += block.is_layer ? 1 : 2;
  }
  const auto is_own = [&](const Parameter* param) { return num_layers[param] == 1; };
  Group& shard_group = *groups_.dp_shard_cp;
  for (const Block& block : blocks) {
    Place& place = places_.emplace_back();
    if (!block.is_layer) continue;
    std::vector<Parameter*>& own = members[places_.size() - 1];
    own.erase(std::remove_if(own.begin(), own.end(), [&](const Parameter* param) { return !is_own(param); }),
              own.end());
    place.layer = layers_.size();
    layers_.push_back({std::make_unique<FsdpUnit>(block.name, own, shard_group, device, memory_, host_.get())});
  }
  for (size_t i = places_.size(); i-- > 1;) {
    places_[i - 1].next = places_[i].layer ? places_[i].layer : places_[i].next;
  }
  std::vector<Parameter*> rest;
  for (Parameter* param : params) {
    if (!is_own(param)) rest.push_back(param);
  }
  root_ = std::make_unique<FsdpUnit>("root", rest, shard_group, device, memory_, host_.get());
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
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) visit(*layer->unit);
  visit(*root_);
}

int64_t Fsdp::parameter_bytes() const {
  int64_t bytes = root_->parameter_bytes();
  for (const Layer& layer : layers_) bytes += layer.unit->parameter_bytes();
  return bytes;
}

int64_t Fsdp::gradient_bytes() const {
  int64_t bytes = root_->gradient_bytes();
  for (const Layer& layer : layers_) bytes += layer.unit->gradient_bytes();
  return bytes;
}

int64_t Fsdp::host_bytes() const {
  return host_ ? parameter_bytes() + gradient_bytes() + host_->landing_bytes() : 0;
}

int64_t Fsdp::whole_parameter_bytes_bound() const {
  int64_t all = 0, pair = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t bytes = layers_[i].unit->whole_parameter_bytes();
    all += bytes;
    pair = std::max(pair, bytes + (i == 0 ? 0 : layers_[i - 1].unit->whole_parameter_bytes()));
  }
  return root_->whole_parameter_bytes() + (options_.reshard_after_forward ? pair : all);
}

int64_t Fsdp::whole_gradient_bytes_bound() const {
  // Buffers are reused: a small layer may occupy a large one's.
  int64_t largest = 0;
  for (const Layer& layer : layers_) largest = std::max(largest, layer.unit->whole_gradient_bytes());
  const auto num_buffers = static_cast<int64_t>(std::min(kGradientUnits, layers_.size()));
  // The root's bf16 copy adds to its buffer; a layer's buffer is freed after copying.
  const int64_t root = root_->whole_gradient_bytes();
  return root + (options_.grad_reduce_in_bf16 ? root / 2 : 0) + num_buffers * largest;
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
  root_->open_gradients(pool_);  // the loss adds to them in forward
}

void Fsdp::finish_step() {
  finish_backward();
  if (root_->are_gradients_open()) {
    root_->reduce_gradients(pool_, options_.grad_reduce_in_bf16);
    while (!reductions_.empty()) finish_oldest_reduction();
    root_->finish_reduction(pool_);
  }
  if (host_) host_->settle();
  for_each_unit([&](FsdpUnit& unit) { unit.finish_replica_sum(*groups_.dp_replicate, options_.grad_reduce_in_bf16); });
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
  FsdpUnit& unit = place.layer ? *layers_[*place.layer].unit : *root_;
  unit.gather();
  if (options_.overlap && place.next) layers_[*place.next].unit->gather();
  unit.wait_until_whole();

  std::vector<at::Tensor> outputs;
  bool is_recorded = false;
  if (place.layer && at::GradMode::is_enabled()) {
    const LayerCall call{this, *place.layer};
    std::vector<at::Tensor> passed = inputs;
    pass_through<AfterUnitBackward>(passed, call);
    outputs = body(passed);
    is_recorded = pass_through<BeforeUnitBackward>(outputs, call);
  } else {
    outputs = body(inputs);
  }
  if (is_recorded) ++layers_[*place.layer].num_awaiting;

  if (place.layer) {
    const bool is_needed_at_once = *place.layer + 1 == layers_.size();
    const bool stays = is_in_step_ && is_recorded && (is_needed_at_once || !options_.reshard_after_forward);
    if (!stays) unit.reshard();
  }
  if (!is_in_step_ && index + 1 == places_.size()) root_->reshard();
  return outputs;
}

void Fsdp::before_backward(size_t index) {
  Layer& layer = layers_[index];
  MEGALITH_CHECK(is_in_step_, "backward of {} outside a step", layer.unit->name());
  layer.unit->gather();
  if (options_.overlap && index > 0 && layers_[index - 1].num_awaiting > 0) layers_[index - 1].unit->gather();
  if (layer.unit->has_trainable()) {
    // A one-layer model meets its own reduction of the previous microbatch.
    const auto is_under_way = [&] {
      return std::find(reductions_.begin(), reductions_.end(), index) != reductions_.end();
    };
    while (reductions_.size() >= kGradientUnits || is_under_way()) finish_oldest_reduction();
    layer.unit->open_gradients(pool_);
  }
  layer.unit->wait_until_whole();
  layer.is_in_backward = true;
}

void Fsdp::after_backward(size_t index) {
  Layer& layer = layers_[index];
  layer.unit->reshard();
  if (layer.unit->are_gradients_open()) {
    layer.unit->reduce_gradients(pool_, options_.grad_reduce_in_bf16);
    reductions_.push_back(index);
    while (!options_.overlap && !reductions_.empty()) finish_oldest_reduction();
  }
  layer.is_in_backward = false;
  --layer.num_awaiting;
}

void Fsdp::finish_oldest_reduction() {
  Layer& layer = layers_[reductions_.front()];
  reductions_.pop_front();
  layer.unit->finish_reduction(pool_);
  // Host runs are complete only at the step's end.
  if (is_last_microbatch_ && layer.num_awaiting == 0 && !host_) {
    layer.unit->start_replica_sum(*groups_.dp_replicate, options_.grad_reduce_in_bf16);
  }
}

void Fsdp::finish_backward() {
  for (size_t index = layers_.size(); index-- > 0;) {
    while (layers_[index].num_awaiting > 0) {
      if (!layers_[index].is_in_backward) before_backward(index);
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
