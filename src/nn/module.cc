#include "nn/module.h"

namespace megalith {

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

double Module::forward_flops(const CostShape& shape) const {
  double total = own_forward_flops(shape);
  for (const Module* child : children_) total += child->forward_flops(shape_of(*child, shape));
  return total;
}

double Module::frozen_flops(const CostShape& shape) const {
  double total = own_frozen_flops(shape);
  for (const Module* child : children_) total += child->frozen_flops(shape_of(*child, shape));
  return total;
}

void Module::for_each_module(const std::function<void(const Module&)>& visit) const {
  visit(*this);
  for (const Module* child : children_) child->for_each_module(visit);
}

Parameter& Module::register_parameter(std::string name, Placement placement, const ParameterOptions& options) {
  return *parameters_.emplace_back(std::make_unique<Parameter>(std::move(name), std::move(placement), options));
}

double Module::own_forward_flops(const CostShape&) const { return 0; }

double Module::own_frozen_flops(const CostShape&) const { return 0; }

CostShape Module::shape_of(const Module& /*child*/, const CostShape& shape) const { return shape; }

}  // namespace megalith
