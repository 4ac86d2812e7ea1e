// Module: a tree of layers that own Parameters. Ours, not torch's: it is light to compile, knows Placements, and tells
// what it costs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/parameter.h"
#include "ops/kernels.h"

namespace megalith {

struct Groups;  // comm/groups.h

// What every layer is built with: who we are among the ranks, and in which form to hold the weights.
struct LayerContext {
  const Groups* groups = nullptr;  // live groups of this rank; outlives the model
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  Kernels kernels = Kernels::kFused;
  bool is_sequence_parallel = false;
  uint64_t seed = 1234;  // of the dropout keys
};

// What a forward pass over b sequences of s tokens costs on this rank. Attention's products are counted over all keys,
// not halved for causality: what Primus reports. Megatron since 0.12 halves them (train/ has both).
struct LayerCost {
  double forward_flops = 0;  // 2 a multiply-add, matrix products only; backward is twice as much
  int64_t kept_bytes = 0;    // kept from forward for backward, a tensor that two layers keep counted once
  LayerCost& operator+=(const LayerCost& other);
};
struct CostShape {
  int64_t b = 1, s = 1;
  int64_t activation_bytes = 2;  // an element of the activations' dtype
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;  // parents and autograd nodes hold addresses
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Parameters in registration order, children included.
  void for_each_parameter(const std::function<void(Parameter&)>& visit) const;
  std::vector<Parameter*> parameters() const;
  int64_t num_parameters() const;  // canonical elements on this rank, padding not counted
  // Sum over this module and its children.
  LayerCost cost(const CostShape& shape) const;

 protected:
  Parameter& register_parameter(std::string name, Placement placement, const ParameterOptions& options);
  // A child owned elsewhere in the derived class.
  void register_module(Module& child) { children_.push_back(&child); }
  // This module's own part, without children.
  virtual LayerCost own_cost(const CostShape& shape) const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Module*> children_;
};

}  // namespace megalith
