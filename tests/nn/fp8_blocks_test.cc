// Scales of blocks against loops over their elements, and a linear's products with them, cut over ranks or not.
#include "nn/fp8_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/fp8_recipe.h"
#include "nn/linear.h"
#include "support/kept_bytes.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

// Factor of each element: a block has `height` rows and `width` columns.
at::Tensor plain_scales(const at::Tensor& x, int64_t height, int64_t width, double largest) {
  at::Tensor scales = at::empty(x.sizes(), at::kDouble);
  for (int64_t r = 0; r < x.size(0); r += height) {
    for (int64_t c = 0; c < x.size(1); c += width) {
      const auto block = [&](const at::Tensor& t) {
        return t.narrow(0, r, std::min(height, x.size(0) - r)).narrow(1, c, std::min(width, x.size(1) - c));
      };
      const double amax = block(x).abs().max().item<double>();
      block(scales).fill_(amax == 0 ? 1 : std::exp2(std::floor(std::log2(largest / amax))));
    }
  }
  return scales;
}

at::Tensor plain_rounded(const at::Tensor& x, const at::Tensor& scales, at::ScalarType fp8, double largest) {
  return (x.to(at::kDouble) * scales).clamp(-largest, largest).to(fp8).to(at::kDouble) / scales;
}

at::Tensor spread_of(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& offsets = {}) {
  return scaled_blocks(at::ones(x.sizes(), scale.options()), scale, offsets, 1).to(at::kDouble);
}

// Sizes of every block differ, so that a mix-up of blocks shows.
at::Tensor sizes_that_differ(int64_t rows, int64_t columns) {
  at::manual_seed(11);
  return at::randn({rows, columns}) * at::exp2(at::randint(-20, 20, {rows, 1})) *
         at::exp2(at::randint(-20, 20, {columns}));
}

TEST(Fp8Blocks, ScalesAreThoseOfTheBlocksDownToPowersOfTwo) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{300, 130}, {1, 1}, {128, 256}, {7, 129}, {129, 3}}) {
    const at::Tensor x = sizes_that_differ(rows, columns);
    const at::Tensor along = scales_of_blocks(amax_along_rows(x), 448),
                     down = scales_of_blocks(amax_down_columns(x, {}), 448);
    const at::Tensor squares = scales_of_blocks(amax_of_squares(x, 0), 448);
    EXPECT_EQ(along.sizes(), at::IntArrayRef({rows, (columns + 127) / 128}));
    EXPECT_EQ(down.sizes(), at::IntArrayRef({(rows + 127) / 128, columns}));
    EXPECT_TRUE(at::equal(spread_of(x, along), plain_scales(x, 1, 128, 448))) << rows << " x " << columns;
    EXPECT_TRUE(at::equal(spread_of(x, down), plain_scales(x, 128, 1, 448))) << rows << " x " << columns;
    EXPECT_TRUE(at::equal(spread_of(x, squares), plain_scales(x, 128, 128, 448))) << rows << " x " << columns;
  }
}

TEST(Fp8Blocks, EdgesOfAScale) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor scales = scales_of_blocks(at::tensor({0.F, infinity, 448.F, 449.F, 447.F, 1e-44F, NAN}), 448);
  EXPECT_TRUE(at::equal(scales.narrow(0, 0, 6), at::tensor({1.F, 1.F, 1.F, 0.5F, 1.F, std::ldexp(1.F, 127)})));
  EXPECT_TRUE(scales[6].isnan().item<bool>());
}

TEST(Fp8Blocks, NoBlockHasRowsOfTwoExperts) {
  const std::vector<int64_t> counts = {5, 0, 130, 1, 256, 0};
  std::vector<int64_t> starts = {0};
  for (const int64_t count : counts) starts.push_back(starts.back() + count);
  const at::Tensor offsets = at::tensor(starts), x = sizes_that_differ(starts.back(), 9);
  const at::Tensor all = spread_of(x, scales_of_blocks(amax_down_columns(x, offsets), 448), offsets);
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;
    const at::Tensor own = x.narrow(0, starts[e], counts[e]);
    EXPECT_TRUE(at::equal(all.narrow(0, starts[e], counts[e]), plain_scales(own, 128, 1, 448))) << "expert " << e;
  }
  const at::Tensor weights = sizes_that_differ(3 * 140, 130);
  const at::Tensor of_weights = spread_of(weights, scales_of_blocks(amax_of_squares(weights, 3), 448));
  for (int64_t e = 0; e < 3; ++e) {
    EXPECT_TRUE(
        at::equal(of_weights.narrow(0, 140 * e, 140), plain_scales(weights.narrow(0, 140 * e, 140), 128, 128, 448)));
  }
}

std::shared_ptr<const MatmulRecipe> blockwise() {
  return std::make_shared<Fp8Recipe>(Fp8Settings{.scaling = Fp8Scaling::kBlockwise}, Kernels::kReference);
}

TEST(Fp8Blocks, ALinearMultipliesWhatEachProductsBlocksGive) {
  const Groups groups = Groups::single();
  LayerContext context = double_context(groups);
  context.recipe = blockwise();
  Linear linear(context, "a", 150, 140, {});
  load(linear, golden_weights(linear, at::kDouble));
  attach_gradients(linear);
  at::manual_seed(2);
  const at::Tensor x = at::randn({200, 150}, at::kDouble).set_requires_grad(true),
                   dy = at::randn({200, 140}, at::kDouble);
  const at::Tensor y = linear.forward(x);
  y.backward(dy);
  const at::Tensor leaf = x.detach(), w = linear.weight().data();
  const auto e4m3 = [](const at::Tensor& t, int64_t height, int64_t width) {
    return plain_rounded(t, plain_scales(t, height, width, 448), at::kFloat8_e4m3fn, 448);
  };
  const auto e5m2 = [](const at::Tensor& t, int64_t height, int64_t width) {
    return plain_rounded(t, plain_scales(t, height, width, 57344), at::kFloat8_e5m2, 57344);
  };
  // Sums in another order.
  EXPECT_LT(relative_difference(y.detach(), e4m3(leaf, 1, 128).mm(e4m3(w, 128, 128).t())), 1e-13);
  EXPECT_LT(relative_difference(x.grad(), e5m2(dy, 1, 128).mm(e4m3(w, 128, 128))), 1e-13);
  EXPECT_LT(relative_difference(linear.weight().grad(), e5m2(dy, 128, 1).t().mm(e4m3(leaf, 128, 1))), 1e-13);
}

// The memory of activations is measured there before a run starts.
TEST(Fp8Blocks, WhatIsKeptIsKnownOnTheMetaDevice) {
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups, .dtype = at::kBFloat16, .device = at::kMeta};
  context.recipe = blockwise();
  Linear linear(context, "a", 130, 64, {});
  const auto forward = [&](const at::Tensor& x) { return linear.forward(x); };
  // A byte an element, a scale for each 128 rows of a column, and the weight's two.
  EXPECT_EQ(kept_bytes({300, 130}, at::kBFloat16, forward), 300 * 130 + 4 * 3 * 130 + 4 * 2);
  const at::Tensor offsets = at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const at::Tensor x = at::empty({3, 2}, at::TensorOptions(at::kMeta)), w = at::empty({12, 2}, x.options());
  const Operand rows = context.recipe->take(x, OperandRole::kInput, {.offsets = offsets});
  const Operand weights = context.recipe->take(w, OperandRole::kWeight, {.num_experts = 3});
  const Operand dy = context.recipe->take(at::empty({3, 4}, x.options()), OperandRole::kGradient, {.offsets = offsets});
  EXPECT_EQ(weights.scale.sizes(), at::IntArrayRef({3, 1, 1}));
  EXPECT_EQ(dy.wgrad_scale.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(context.recipe->grouped_forward(rows, weights, offsets).sizes(), at::IntArrayRef({3, 4}));
}

// All cuts fall on multiples of 128: tokens, rows and columns of the weight.
TEST(Fp8Blocks, RanksThatCutAtBlocksMultiplyAsOneRank) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({256, 256}, at::kDouble), dy = at::randn({256, 256}, at::kDouble);
  // Two linears, so that each is cut the way it is in a model.
  struct Pair : Module {
    explicit Pair(const LayerContext& c)
        : up(c, "up", 256, 256, {.role = LinearRole::kColumn}), down(c, "down", 256, 256, {.role = LinearRole::kRow}) {
      register_module(up);
      register_module(down);
    }
    Linear up, down;
  };
  const auto make = [](const LayerContext& c) {
    LayerContext own = c;
    own.recipe = blockwise();
    return std::make_unique<Pair>(own);
  };
  const auto forward = [](Pair& pair, const at::Tensor& in) { return pair.down.forward(pair.up.forward(in)); };
  const Groups single = Groups::single();
  const TensorMap weights = golden_weights(*make(double_context(single)), at::kDouble);
  const LayerPass expected = run_layer(double_context(single), make, forward, weights, x, dy);
  for (const bool is_sequence_parallel : {false, true}) {
    const LayerPass cut = run_layer_on_ranks(2, is_sequence_parallel, make, forward, weights, x, dy);
    expect_near(cut, expected, 1e-12, is_sequence_parallel ? "sequence parallel" : "tensor parallel");
  }
}

}  // namespace
}  // namespace megalith
