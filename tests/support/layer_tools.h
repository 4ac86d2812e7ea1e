// For tests of layers: one forward and backward pass, on one rank or on several, and what a step would make of it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/thread_world.h"
#include "support/module_tools.h"

namespace megalith::test {

struct LayerPass {
  at::Tensor y, dx;     // whole
  TensorMap gradients;  // by canonical name, whole
};

inline LayerContext double_context(const Groups& groups, bool is_sequence_parallel = false) {
  return {.groups = &groups, .dtype = at::kDouble, .is_sequence_parallel = is_sequence_parallel};
}

// run(layer, x) of a layer that make(context) gives, with these weights; x and dy are the rows of this rank.
template <typename Make, typename Run>
LayerPass run_layer(const LayerContext& context, const Make& make, const Run& run, const TensorMap& weights,
                    const at::Tensor& x, const at::Tensor& dy) {
  auto layer = make(context);
  load(*layer, weights);
  attach_gradients(*layer);
  const at::Tensor input = x.clone().set_requires_grad(true);
  const at::Tensor y = run(*layer, input);
  y.backward(dy);
  // Gradients that are partial on each rank are summed, as at the end of a step.
  layer->for_each_parameter([&](Parameter& parameter) {
    parameter.finish_step();
    if (!parameter.placement().partial_axes.contains(Axis::kTp)) return;
    context.groups->tp->all_reduce(parameter.grad(), ReduceOp::kSum, parameter.name()).wait();
  });
  return {y.detach(), input.grad(), gradients_of(*layer)};
}

// The same by `tp` ranks, to each of which x and dy are given whole, or their rows of it under sequence parallelism.
// Values that several ranks hold must be the same to the bit.
template <typename Make, typename Run>
LayerPass run_layer_on_ranks(int tp, bool is_sequence_parallel, const Make& make, const Run& run,
                             const TensorMap& weights, const at::Tensor& x, const at::Tensor& dy,
                             const SelectiveRecompute& recompute = {}) {
  std::vector<LayerPass> passes(static_cast<size_t>(tp));
  ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
    LayerContext context = double_context(groups, is_sequence_parallel);
    context.recompute = recompute;
    const auto rows = [&](const at::Tensor& whole) {
      return is_sequence_parallel ? whole.chunk(tp)[static_cast<size_t>(groups.tp->rank())] : whole;
    };
    passes[static_cast<size_t>(groups.tp->rank())] = run_layer(context, make, run, weights, rows(x), rows(dy));
  });
  LayerPass all = passes[0];
  for (size_t rank = 1; rank < passes.size(); ++rank) {
    const LayerPass& more = passes[rank];
    if (is_sequence_parallel) {
      all.y = at::cat({all.y, more.y});
      all.dx = at::cat({all.dx, more.dx});
    } else {
      EXPECT_TRUE(at::equal(all.y, more.y));
      EXPECT_TRUE(at::equal(all.dx, more.dx));
    }
    for (const auto& [name, gradient] : more.gradients) {
      at::Tensor& merged = all.gradients[name];
      const at::Tensor own = merged.defined() ? merged : at::full_like(gradient, std::nan(""));
      const at::Tensor both = own.isnan().logical_or(gradient.isnan());
      EXPECT_TRUE(at::where(both, 0, own).equal(at::where(both, 0, gradient))) << name;
      merged = at::where(own.isnan(), gradient, own);
    }
  }
  return all;
}

inline void expect_near(const LayerPass& actual, const LayerPass& expected, double tolerance, const std::string& what) {
  EXPECT_LT(relative_difference(actual.y, expected.y), tolerance) << what;
  EXPECT_LT(relative_difference(actual.dx, expected.dx), tolerance) << what;
  EXPECT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    const auto found = actual.gradients.find(name);
    ASSERT_NE(found, actual.gradients.end()) << what << ": " << name;
    EXPECT_LT(relative_difference(found->second, gradient), tolerance) << what << ": " << name;
  }
}

// naive(weights, x), differentiated by ATen.
template <typename Naive>
LayerPass differentiate(const Naive& naive, const TensorMap& weights, const at::Tensor& x, const at::Tensor& dy) {
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.clone().set_requires_grad(true);
  const at::Tensor input = x.clone().set_requires_grad(true);
  const at::Tensor y = naive(leaves, input);
  y.backward(dy);
  LayerPass pass{y.detach(), input.grad(), {}};
  for (const auto& [name, leaf] : leaves) pass.gradients[name] = leaf.grad();
  return pass;
}

}  // namespace megalith::test
