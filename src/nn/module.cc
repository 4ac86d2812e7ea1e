// Walks over the tree of layers.
#include "nn/module.h"

#include <algorithm>

namespace megalith {

LayerCost& LayerCost::operator+=(const LayerCost& other) {
  forward_flops += other.forward_flops;
  kept_bytes += other.kept_bytes;
  recomputed_bytes = std::max(recomputed_bytes, other.recomputed_bytes);
  working_bytes = std::max(working_bytes, other.working_bytes);
  return *this;
}

void Module::for_each_parameter(const std::function<void(Parameter&)>& visit) const {
  for (const auto& parameter : parameters_) visit(*parameter);
  for (const Module* child : children_) child->for_each_parameter(visit);
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> found;
  for_each_parameter([&](Parameter& parameter) { found.push_back(&parameter); });
  return found;
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for_each_parameter([&](Parameter& parameter) { count += parameter.placement().num_canonical_elements(); });
  return count;
}

LayerCost Module::cost(const CostShape& shape) const {
  LayerCost total = own_cost(shape);
  for (const Module* child : children_) total += child->cost(shape);
  return total;
}

Parameter& Module::register_parameter(std::string name, Placement placement, const ParameterOptions& options) {
  return *parameters_.emplace_back(std::make_unique<Parameter>(std::move(name), std::move(placement), options));
}

LayerCost Module::own_cost(const CostShape&) const { return {}; }

}  // namespace megalith
