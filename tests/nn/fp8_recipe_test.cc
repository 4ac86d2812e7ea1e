// Eight-bit products: the casts against the formats' own tables, the scales, what is kept, and layers over ranks.
#include "nn/fp8_recipe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "comm/thread_world.h"
#include "config/option.h"
#include "core/error.h"
#include "nn/mlp.h"
#include "nn/moe_layer.h"
#include "support/kept_bytes.h"
#include "support/layer_options.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

const Fp8Recipe& hybrid() {
  static const Fp8Recipe recipe(Fp8Format::kHybrid, Kernels::kReference);
  return recipe;
}

// Values of the non-negative codes 0, 1, … of a format, up to its largest finite number.
std::vector<double> numbers_of_format(int exponent_bits, int mantissa_bits, double largest) {
  const int bias = (1 << (exponent_bits - 1)) - 1, mantissas = 1 << mantissa_bits;
  std::vector<double> numbers;
  for (int code = 0; code < 128; ++code) {
    const int exponent = code / mantissas, mantissa = code % mantissas;
    const double value = exponent == 0 ? std::ldexp(static_cast<double>(mantissa) / mantissas, 1 - bias)
                                       : std::ldexp(1 + static_cast<double>(mantissa) / mantissas, exponent - bias);
    if (value > largest) break;
    numbers.push_back(value);
  }
  EXPECT_EQ(numbers.back(), largest);
  return numbers;
}

// The nearest number of the format, of two equally near ones that with an even code.
double nearest(const std::vector<double>& numbers, double x) {
  const double size = std::min(std::abs(x), numbers.back());
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), size);
  const auto code = above - numbers.begin();
  double found = *above;
  if (code > 0) {
    const double below = *(above - 1), to_above = *above - size, to_below = size - below;
    if (to_below < to_above || (to_below == to_above && (code - 1) % 2 == 0)) found = below;
  }
  return std::copysign(found, x);
}

TEST(Fp8Recipe, CastsRoundEveryBf16NumberToTheNearestOfTheFormatAndSaturate) {
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  const at::Tensor every = bits.view(at::kBFloat16);
  const at::Tensor x = every.masked_select(every.isfinite());
  for (const auto& [role, numbers] : {std::pair(OperandRole::kInput, numbers_of_format(4, 3, 448)),
                                      std::pair(OperandRole::kWeight, numbers_of_format(4, 3, 448)),
                                      std::pair(OperandRole::kGradient, numbers_of_format(5, 2, 57344))}) {
    const Operand operand = hybrid().take(x, role, {.scale = at::ones({}, at::kFloat)});
    EXPECT_EQ(operand.values.element_size(), 1u);
    EXPECT_EQ(operand.dtype, at::kBFloat16);
    const at::Tensor actual = operand.values.to(at::kDouble), given = x.to(at::kDouble);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double in = given.const_data_ptr<double>()[i], out = actual.const_data_ptr<double>()[i];
      ASSERT_EQ(out, nearest(numbers, in)) << "of " << in;
    }
    // Within the range, where LibTorch's cast does not give NaN either, the codes are LibTorch's.
    const at::Tensor inside = x.masked_select(x.abs().le(numbers.back()));
    const Operand codes = hybrid().take(inside, role, {.scale = at::ones({}, at::kFloat)});
    EXPECT_TRUE(at::equal(codes.values.view(at::kByte), inside.to(codes.values.scalar_type()).view(at::kByte)));
  }
}

TEST(Fp8Recipe, TheLargestValueBecomesTheLargestNumberOfTheFormat) {
  const auto scale_of = [](const at::Tensor& x, OperandRole role, const Fp8Recipe& recipe = hybrid()) {
    return recipe.take(x, role, {}).scale.item<double>();
  };
  const at::Tensor x = at::tensor({0.5f, -3.5f, 2.f});
  EXPECT_EQ(scale_of(x, OperandRole::kInput), 448 / 3.5);
  EXPECT_EQ(scale_of(x, OperandRole::kGradient), 57344 / 3.5);
  EXPECT_EQ(scale_of(x, OperandRole::kGradient, Fp8Recipe(Fp8Format::kE4m3, Kernels::kFused)), 448 / 3.5);
  EXPECT_EQ(hybrid().take(x, OperandRole::kInput, {}).values.to(at::kFloat)[1].item<float>(), -448);
  EXPECT_EQ(scale_of(at::zeros({3}), OperandRole::kInput), 1);
  EXPECT_EQ(scale_of(at::empty({0}), OperandRole::kInput), 1);
  EXPECT_EQ(scale_of(at::full({1}, std::numeric_limits<float>::infinity()), OperandRole::kInput), 1);
  EXPECT_EQ(scale_of(at::full({1}, 1e-44f), OperandRole::kInput), std::numeric_limits<float>::max());
  // A number that is none stays one, so the step is seen to be broken.
  EXPECT_TRUE(
      hybrid().take(at::full({2}, NAN), OperandRole::kInput, {}).values.to(at::kFloat).isnan().all().item<bool>());
}

// The same scaling and rounding of a whole tensor in LibTorch's operators.
at::Tensor fp8_rounded(const at::Tensor& x, at::ScalarType fp8, double largest) {
  const at::Tensor wide = x.to(at::kFloat), scale = largest / wide.abs().max();
  return (wide * scale).clamp(-largest, largest).to(fp8).to(at::kFloat) * (1 / scale);
}

TEST(Fp8Recipe, ALinearMultipliesTheRoundedOperandsForwardAndBackward) {
  const Groups groups = Groups::single();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool is_hybrid : {true, false}) {
      LayerContext context{.groups = &groups, .dtype = dtype};
      context.recipe = std::make_shared<Fp8Recipe>(is_hybrid ? Fp8Format::kHybrid : Fp8Format::kE4m3, Kernels::kFused);
      Linear linear(context, "a", 24, 16, {.has_bias = true});
      load(linear, golden_weights(linear, dtype));
      attach_gradients(linear);
      at::manual_seed(5);
      const at::Tensor x = at::randn({12, 24}).to(dtype).set_requires_grad(true), dy = at::randn({12, 16}).to(dtype);
      const at::Tensor y = linear.forward(x);
      y.backward(dy);
      const at::Tensor x8 = fp8_rounded(x.detach(), at::kFloat8_e4m3fn, 448);
      const at::Tensor w8 = fp8_rounded(linear.weight().data(), at::kFloat8_e4m3fn, 448);
      const at::Tensor dy8 =
          is_hybrid ? fp8_rounded(dy, at::kFloat8_e5m2, 57344) : fp8_rounded(dy, at::kFloat8_e4m3fn, 448);
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_EQ(x.grad().scalar_type(), dtype);
      // Sums in another order; in bf16 one rounding more at a tie.
      const double tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 128;
      const auto expect_close = [&](const at::Tensor& actual, const at::Tensor& expected, double bound) {
        EXPECT_LT(relative_difference(actual.detach().to(at::kDouble), expected.to(at::kDouble)), bound);
      };
      expect_close(y, x8.mm(w8.t()) + linear.bias()->data().to(at::kFloat), tolerance);
      expect_close(x.grad(), dy8.mm(w8), tolerance);
      expect_close(linear.weight().grad(), dy8.t().mm(x8), 1e-6);           // fp32 in any case
      expect_close(linear.bias()->grad(), dy.to(at::kFloat).sum(0), 1e-6);  // not rounded
      EXPECT_GT(relative_difference(linear.weight().grad().to(at::kDouble),
                                    dy.to(at::kDouble).t().mm(x.detach().to(at::kDouble))),
                1e-3);  // eight bits are felt
    }
  }
}

TEST(Fp8Recipe, WhatIsKeptOfAnInputIsAByteAnElement) {
  const Groups groups = Groups::single();
  const auto kept_of = [&](bool is_eight_bit, const SelectiveRecompute& recompute) {
    LayerContext context{.groups = &groups, .dtype = at::kBFloat16, .device = at::kMeta, .recompute = recompute};
    if (is_eight_bit) context.recipe = std::make_shared<Fp8Recipe>(Fp8Format::kHybrid, Kernels::kFused);
    Mlp mlp(context, "mlp", plain_layer_options(32), {.ffn = 48});
    return kept_bytes({16, 32}, at::kBFloat16, [&](const at::Tensor& x) { return mlp.forward(x, {}); });
  };
  constexpr int64_t kScales = 4 * 4;  // of the inputs and weights of two linears
  // Gate and up are kept as they are; the inputs of both linears have half their size.
  EXPECT_EQ(kept_of(false, {}), 16 * (2 * 32 + 2 * 2 * 48 + 2 * 48));
  EXPECT_EQ(kept_of(true, {}), 16 * (32 + 2 * 2 * 48 + 48) + kScales);
  // An input that is computed again is not kept at all; its scale is.
  EXPECT_EQ(kept_of(true, {.mlp_activation = true}), 16 * (32 + 2 * 2 * 48) + kScales);
}

TEST(Fp8Recipe, ComputedAgainLayersGiveTheSameBits) {
  const Groups groups = Groups::single();
  const auto run = [&](const SelectiveRecompute& recompute) {
    LayerContext context{.groups = &groups, .dtype = at::kBFloat16, .recompute = recompute};
    context.recipe = std::make_shared<Fp8Recipe>(Fp8Format::kHybrid, Kernels::kFused);
    const auto make = [](const LayerContext& c) {
      return std::make_unique<Mlp>(c, "mlp", plain_layer_options(8), MlpSite{.ffn = 12});
    };
    at::manual_seed(3);
    const at::Tensor x = at::randn({10, 8}).to(at::kBFloat16), dy = at::randn({10, 8}).to(at::kBFloat16);
    return run_layer(
        context, make, [](Mlp& mlp, const at::Tensor& in) { return mlp.forward(in, {}); },
        golden_weights(*make(context), at::kBFloat16), x, dy);
  };
  const LayerPass expected = run({});
  for (const SelectiveRecompute& recompute : {SelectiveRecompute{.mlp = true}, {.mlp_activation = true}}) {
    const LayerPass pass = run(recompute);
    EXPECT_TRUE(at::equal(pass.y, expected.y));
    EXPECT_TRUE(at::equal(pass.dx, expected.dx));
    for (const auto& [name, gradient] : expected.gradients) {
      EXPECT_TRUE(at::equal(pass.gradients.at(name), gradient)) << name;
    }
  }
}

TEST(Fp8Recipe, RanksWithPartsOfATensorScaleAsTheWhole) {
  at::manual_seed(1);
  const at::Tensor whole = at::randn({8, 6});
  const Operand expected = hybrid().take(whole, OperandRole::kInput, {});
  ThreadWorld(4).run(Mesh({.tp = 4}), [&](Groups& groups) {
    const at::Tensor part = whole.chunk(4)[static_cast<size_t>(groups.rank)];
    const Operand operand = hybrid().take(part, OperandRole::kInput, {.group = groups.tp.get(), .label = "x"});
    EXPECT_TRUE(at::equal(operand.scale, expected.scale));
    EXPECT_TRUE(at::equal(operand.values.view(at::kByte),
                          expected.values.view(at::kByte).chunk(4)[static_cast<size_t>(groups.rank)]));
  });
}

TEST(Fp8Recipe, EachExpertHasAScaleOfItsOwn) {
  const at::Tensor offsets = at::tensor({int64_t{0}, int64_t{2}, int64_t{2}, int64_t{3}});
  const at::Tensor x = at::tensor({1.f, -2.f, 4.f, 0.5f, 7.f, 0.f}).view({3, 2});
  const Operand rows = hybrid().take(x, OperandRole::kInput, {.offsets = offsets});
  EXPECT_TRUE(at::equal(rows.scale, at::tensor({448 / 4.f, 1.f, 448 / 7.f})));  // the second has no rows
  const Operand weights = hybrid().take(x, OperandRole::kWeight, {.num_experts = 3});
  EXPECT_TRUE(at::equal(weights.scale, at::tensor({448 / 2.f, 448 / 4.f, 448 / 7.f})));
  // One by one they are linears.
  const at::Tensor w = at::linspace(-1, 1, 3 * 4 * 2).view({12, 2});
  const Operand w8 = hybrid().take(w, OperandRole::kWeight, {.num_experts = 3});
  const at::Tensor y = hybrid().grouped_forward(rows, w8, offsets);
  for (const auto& [expert, first, count] : {std::tuple(0, 0, 2), std::tuple(2, 2, 1)}) {
    const Operand own_x = hybrid().take(x.narrow(0, first, count), OperandRole::kInput, {});
    const Operand own_w = hybrid().take(w.narrow(0, 4 * expert, 4), OperandRole::kWeight, {});
    EXPECT_TRUE(at::allclose(y.narrow(0, first, count), hybrid().forward(own_x, own_w, {}), 1e-6, 1e-6));
  }
}

// The memory of activations is measured there before a run starts.
TEST(Fp8Recipe, ExpertsHaveShapesOnTheMetaDevice) {
  const at::Tensor offsets = at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const at::Tensor x = at::empty({3, 2}, at::TensorOptions(at::kMeta)), w = at::empty({12, 2}, x.options());
  const Operand rows = hybrid().take(x, OperandRole::kInput, {.offsets = offsets});
  EXPECT_EQ(rows.scale.sizes(), at::IntArrayRef({3}));
  const Operand weights = hybrid().take(w, OperandRole::kWeight, {.num_experts = 3});
  EXPECT_EQ(hybrid().grouped_forward(rows, weights, offsets).sizes(), at::IntArrayRef({3, 4}));
}

TEST(Fp8Recipe, AWeightIsRoundedOnceAStep) {
  const Groups groups = Groups::single();
  for (const bool keeps_weights : {true, false}) {
    LayerContext context{.groups = &groups};
    context.recipe = std::make_shared<Fp8Recipe>(Fp8Settings{.keeps_weights = keeps_weights}, Kernels::kFused);
    RecipeMemory& memory = *context.recipe->memory();
    Linear linear(context, "a", 8, 8, {});
    load(linear, golden_weights(linear, at::kFloat));
    EXPECT_EQ(memory.weight_bytes(), keeps_weights ? 64 : 0);
    const at::Tensor x = at::eye(8);
    const at::Tensor before = linear.forward(x);
    memory.begin_step();
    EXPECT_TRUE(at::equal(linear.forward(x), before));
    linear.weight().data().mul_(3);
    // The first pass's copy; where none is kept, its scale, beyond which three times the weight is cut off.
    EXPECT_EQ(at::equal(linear.forward(x), before), keeps_weights);
    EXPECT_EQ(linear.forward(x).abs().max().item<float>(), before.abs().max().item<float>());
    memory.end_step();
    EXPECT_NEAR(linear.forward(x).abs().max().item<float>(), 3 * before.abs().max().item<float>(), 1e-5);
    memory.begin_step();
    EXPECT_NEAR(linear.forward(x).abs().max().item<float>(), 3 * before.abs().max().item<float>(), 1e-5);
  }
}

TEST(Fp8Recipe, WithoutFp8WgradTheWeightsGradientIsNotRounded) {
  const Groups groups = Groups::single();
  const at::Tensor dy = at::randn({12, 16}), x = at::randn({12, 24});
  for (const Fp8Scaling scaling : {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise}) {
    LayerContext context{.groups = &groups};
    context.recipe =
        std::make_shared<Fp8Recipe>(Fp8Settings{.scaling = scaling, .rounds_wgrad = false}, Kernels::kFused);
    Linear linear(context, "a", 24, 16, {});
    load(linear, golden_weights(linear, at::kFloat));
    attach_gradients(linear);
    const at::Tensor leaf = x.clone().set_requires_grad(true);
    linear.forward(leaf).backward(dy);
    EXPECT_LT(relative_difference(linear.weight().grad().to(at::kDouble), dy.t().mm(x).to(at::kDouble)), 1e-6);
    const at::Tensor unrounded = dy.mm(linear.weight().data());
    EXPECT_GT(relative_difference(leaf.grad().to(at::kDouble), unrounded.to(at::kDouble)), 1e-3);
  }
}

TEST(Fp8Recipe, FirstAndLastLayersAreLeftOut) {
  const Fp8Recipe recipe(Fp8Settings{.num_plain_first = 2, .num_plain_last = 1}, Kernels::kFused);
  std::vector<bool> plain;
  for (int64_t layer = 0; layer < 6; ++layer) plain.push_back(recipe.leaves_plain(layer, 6));
  EXPECT_EQ(plain, (std::vector<bool>{true, true, false, false, false, true}));
  EXPECT_FALSE(hybrid().leaves_plain(0, 1));
  EXPECT_FALSE(recipe.leaves_plain(6, 8) && recipe.leaves_plain(5, 8));
}

TEST(Fp8Options, WhatCannotBeIsRefused) {
  const auto refused = [](const Fp8Options& options) {
    std::string all;
    const MxSizes sizes{.widths = {{"hidden_size", 48}}};
    for (const UserError& error : check_fp8_options(options, 4, sizes)) all += std::string(error.what()) + "\n";
    return all;
  };
  EXPECT_EQ(refused({}), "");
  for (const char* recipe : {"delayed", "tensorwise", "blockwise"}) {
    EXPECT_EQ(refused({.fp8_format = "hybrid", .fp8_recipe = recipe}), "");
  }
  EXPECT_NE(refused({.fp8_format = "e4m3", .fp8_recipe = "mxfp8"}).find("has blocks of 32, and hidden_size is 48"),
            std::string::npos);
  EXPECT_NE(refused({.fp4_format = "e2m1"}).find("fp4_recipe nvfp4: blocks of 16"), std::string::npos);
  EXPECT_NE(refused({.fp8_format = "e4m3", .fp4_format = "e2m1"}).find("both given"), std::string::npos);
  EXPECT_NE(
      refused({.fp8_format = "e4m3", .first_last_layers_bf16 = true}).find("does not work with fp8_recipe delayed"),
      std::string::npos);
  Fp8Options many{.fp8_format = "e4m3", .fp8_recipe = "blockwise", .first_last_layers_bf16 = true};
  many.num_layers_at_start_in_bf16 = 3;
  EXPECT_EQ(refused(many), "");
  many.num_layers_at_end_in_bf16 = 2;
  EXPECT_NE(refused(many).find("more than the model's 4 layers"), std::string::npos);
  EXPECT_EQ(make_recipe({}, Kernels::kFused), nullptr);
}

TEST(Fp8Options, WhatTheLibraryDoesNotMultiplyIsSaid) {
  const auto notes = [](const char* recipe, const ops::gpu::Fp8Products& library, const Fp8Sizes& sizes) {
    return fp8_product_notes({.fp8_format = "hybrid", .fp8_recipe = recipe}, library, sizes);
  };
  const ops::gpu::Fp8Products hopper{.are_made = true, .want_rows_along_sum = true, .take_blocks = true};
  const ops::gpu::Fp8Products blackwell{.are_made = true};
  const Fp8Sizes sizes{.hidden = 1024, .ffn_of_rank = 1792, .tokens = 4096};
  EXPECT_TRUE(notes("delayed", hopper, sizes).empty());
  EXPECT_TRUE(notes("blockwise", hopper, sizes).empty());
  EXPECT_TRUE(notes("tensorwise", blackwell, sizes).empty());
  const auto expect_one = [](const std::vector<std::string>& found, const std::string& part) {
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  };
  expect_one(notes("blockwise", blackwell, sizes),
             "fp8_recipe blockwise: no library multiplies such numbers on this GPU");
  expect_one(notes("delayed", {}, sizes), "fp8_recipe delayed: no library multiplies such numbers on this GPU");
  expect_one(notes("delayed", hopper, {.hidden = 1024, .ffn_of_rank = 1792, .tokens = 4096, .experts = 8}),
             "the experts' numbers");
  const Fp8Sizes odd{.hidden = 1024, .ffn_of_rank = 1800, .tokens = 4096};
  expect_one(notes("delayed", hopper, odd),
             "a rank's share of ffn_hidden_size is 1800, and the library takes multiples of 16");
  expect_one(notes("blockwise", hopper, {.hidden = 1024, .ffn_of_rank = 1808, .tokens = 4096}), "multiples of 128");
}

TEST(Fp8Options, WhatIsSetAndNotReadIsSaid) {
  EXPECT_TRUE(fp8_notes({}).empty());
  EXPECT_TRUE(fp8_notes({.fp8_format = "hybrid", .fp8_margin = 1, .fp8_amax_history_len = 4}).empty());
  EXPECT_EQ(fp8_notes({.fp8_format = "hybrid", .fp8_recipe = "tensorwise", .fp8_margin = 1}),
            std::vector<std::string>{"fp8_margin is read only with fp8_recipe delayed"});
  EXPECT_EQ(fp8_text({.fp8_format = "hybrid", .fp8_amax_history_len = 4, .fp8_wgrad = false}, 2),
            "hybrid FP8, delayed (history 4, most_recent, margin 0), weight gradients without");
}

}  // namespace
}  // namespace megalith
