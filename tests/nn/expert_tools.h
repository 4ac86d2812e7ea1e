// For tests of layers with experts: the slow mixture, token by token and expert by expert, and gradients of all ranks.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "nn/moe_layer.h"
#include "support/module_tools.h"
#include "support/tensor_near.h"

namespace megalith::test {

inline LayerContext expert_context(const Groups& groups, Kernels kernels = Kernels::kReference,
                                   at::ScalarType dtype = at::kDouble) {
  return {.groups = &groups, .dtype = dtype, .kernels = kernels};
}

inline at::Tensor naive_activation(const at::Tensor& v, ops::ActivationKind kind) {
  switch (kind) {
    case ops::ActivationKind::kSilu:
      return v / (1 + at::exp(-v));
    case ops::ActivationKind::kGelu:
      return v * 0.5 * (1 + at::erf(v / std::sqrt(2.0)));
    case ops::ActivationKind::kGeluTanh:
      return v * 0.5 * (1 + at::tanh(std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
    case ops::ActivationKind::kSquaredRelu:
      return at::relu(v) * at::relu(v);
    case ops::ActivationKind::kQuickGelu:
      return v / (1 + at::exp(-1.702 * v));
    case ops::ActivationKind::kRelu:
      return at::where(v > 0, v, at::zeros_like(v));
  }
  return {};
}

// One MLP of one token, x (h): weights are those of `prefix` (which ends with a dot).
inline at::Tensor naive_expert(const at::Tensor& x, const TensorMap& weights, const std::string& prefix,
                               ops::ExpertActivation activation) {
  const auto linear = [&](const char* name, const at::Tensor& input) {
    const at::Tensor y = weights.at(prefix + name + ".weight").mv(input);
    const auto bias = weights.find(prefix + name + ".bias");
    return bias == weights.end() ? y : y + bias->second;
  };
  const at::Tensor up = linear("up_proj", x);
  const at::Tensor product = activation.is_gated ? naive_activation(linear("gate_proj", x), activation.kind) * up
                                                 : naive_activation(up, activation.kind);
  return linear("down_proj", product);
}

// x (t, h), experts and keep (t, k), weights (t, k) -> (t, h); differentiable by autograd.
inline at::Tensor naive_mixture(const at::Tensor& x, const at::Tensor& experts, const at::Tensor& weights,
                                const at::Tensor& keep, const TensorMap& parameters, const std::string& name,
                                ops::ExpertActivation activation) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    at::Tensor y = x[i] * 0;
    for (int64_t j = 0; j < experts.size(1); ++j) {
      if (keep.defined() && !keep[i][j].item<bool>()) continue;
      const std::string expert = fmt::format("{}.experts.{}.", name, experts[i][j].item<int64_t>());
      y = y + weights[i][j] * naive_expert(x[i], parameters, expert, activation);
    }
    rows.push_back(y);
  }
  return at::stack(rows);
}

// Leaves of their own, and what autograd put into them.
inline TensorMap as_leaves(const TensorMap& map) {
  TensorMap leaves;
  for (const auto& [name, tensor] : map) leaves[name] = tensor.clone().set_requires_grad(true);
  return leaves;
}
inline TensorMap gradients_of_leaves(const TensorMap& leaves) {
  TensorMap gradients;
  for (const auto& [name, leaf] : leaves) {
    gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return gradients;
}

// Sums each gradient over the axes that its placement names, as the trainer does; then what a rank holds as canonical
// tensors, NaN where other ranks hold them.
inline TensorMap summed_gradients(const Module& module, const Groups& groups) {
  module.for_each_parameter([&](Parameter& parameter) {
    if (!parameter.is_trainable()) return;
    parameter.finish_step();
    AxisSet axes = parameter.placement().partial_axes;
    const auto sum = [&](const AxisSet& over, const Groups::Pointer& group) {
      if (!over.without(axes).empty()) return;
      group->all_reduce(parameter.grad(), ReduceOp::kSum, parameter.name()).wait();
      axes = axes.without(over);
    };
    sum({Axis::kDp, Axis::kCp}, groups.dp_cp);
    sum(Axis::kTp, groups.tp);
    sum(Axis::kEdp, groups.edp);
    EXPECT_TRUE(axes.empty()) << parameter.name() << " is partial over " << axes.text();
  });
  return gradients_of(module);
}

// Expects every rank's part to equal `expected`, and the parts to cover it.
inline void expect_held(const std::vector<TensorMap>& of_ranks, const TensorMap& expected, const std::string& what,
                        double tolerance = 1e-12) {
  for (const auto& [name, whole] : expected) {
    at::Tensor is_held = at::zeros(whole.sizes(), at::kBool);
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto found = of_ranks[rank].find(name);
      if (found == of_ranks[rank].end()) continue;
      const at::Tensor mine = found->second.isnan().logical_not();
      is_held.logical_or_(mine);
      EXPECT_TENSOR_NEAR(at::where(mine, found->second, whole), whole,
                         {.abs = tolerance,
                          .rel_to_max = tolerance,
                          .what = fmt::format("{}: rank {}, gradient of {}", what, rank, name)});
    }
    EXPECT_TRUE(is_held.all().item<bool>()) << what << ": nobody holds all of " << name;
  }
}

}  // namespace megalith::test
