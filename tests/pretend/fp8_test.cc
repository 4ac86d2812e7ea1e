// Eight-bit layers on a GPU with a double for its library: the same numbers as on the CPU, what is read of which
// operand, and what is allocated. Both devices round operands to the same eight bits: they differ only by the order of
// the sums and the rounding of results to bf16.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "device/memory.h"
#include "nn/fp8_recipe.h"
#include "nn/linear.h"
#include "pretend/accelerator/waits.h"
#include "pretend/blas/cublaslt.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;
using pretend::cublaslt;

const at::Device kAccelerator(at::kPrivateUse1, 0);
constexpr int64_t kIn = 256, kOut = 128, kTokens = 128;

struct Case {
  std::string name;
  Fp8Settings settings;
  at::ScalarType dtype = at::kBFloat16;
};

std::vector<Case> all_cases() {
  const DelayedScaling long_history{.history_length = 3, .takes_largest = true, .margin = 1};
  return {{"tensorwise", {.scaling = Fp8Scaling::kTensorwise}},
          {"tensorwise, fp32", {.scaling = Fp8Scaling::kTensorwise}, at::kFloat},
          {"tensorwise, e4m3", {.format = Fp8Format::kE4m3, .scaling = Fp8Scaling::kTensorwise}},
          {"transposes made again", {.scaling = Fp8Scaling::kTensorwise, .keeps_transposed_weights = false}},
          {"no copies of weights", {.scaling = Fp8Scaling::kTensorwise, .keeps_weights = false}},
          {"weight gradients in bf16", {.scaling = Fp8Scaling::kTensorwise, .rounds_wgrad = false}},
          {"delayed", {.scaling = Fp8Scaling::kDelayed, .delayed = long_history}},
          {"blockwise", {.scaling = Fp8Scaling::kBlockwise}},
          {"blockwise, transposes made again", {.scaling = Fp8Scaling::kBlockwise, .keeps_transposed_weights = false}}};
}

void attach_gradients_there(Linear& linear, at::Device device) {
  linear.for_each_parameter([&](Parameter& parameter) {
    parameter.attach_grad_buffer(
        at::zeros(parameter.value().sizes(), at::TensorOptions(device).dtype(parameter.grad_dtype())));
    parameter.begin_step();
  });
}

// Numbers whose sizes differ from step to step, so that scales do.
at::Tensor numbers_of_step(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::manual_seed(seed);
  return (at::randn(sizes) * std::exp2(static_cast<double>(seed % 5))).to(dtype);
}

// Results of three steps of two microbatches, moved to the CPU. The weights are changed after each step, as an
// optimizer would, by numbers that do not depend on the device.
std::vector<at::Tensor> run_steps(const Case& one, std::shared_ptr<const MatmulRecipe> recipe, at::Device device,
                                  int64_t tokens = kTokens) {
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups, .dtype = one.dtype, .device = device};
  context.recipe = std::move(recipe);
  RecipeMemory& memory = *context.recipe->memory();
  Linear linear(context, "a", kIn, kOut, {.has_bias = true});
  load(linear, golden_weights(linear, one.dtype));
  std::vector<at::Tensor> found;
  for (uint64_t step = 0; step < 3; ++step) {
    attach_gradients_there(linear, device);
    memory.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const uint64_t seed = 10 * step + static_cast<uint64_t>(microbatch);
      const at::Tensor x = numbers_of_step({tokens, kIn}, seed, one.dtype).to(device).set_requires_grad(true);
      memory.begin_forward(microbatch);
      const at::Tensor y = linear.forward(x);
      memory.end_forward(microbatch, groups);
      memory.begin_backward(microbatch);
      y.backward(numbers_of_step({tokens, kOut}, seed + 1000, one.dtype).to(device));
      memory.end_backward(microbatch, groups);
      found.push_back(y.detach().to(at::kCPU));
      found.push_back(x.grad().to(at::kCPU));
    }
    memory.end_step();
    found.push_back(linear.weight().grad().to(at::kCPU).clone());
    found.push_back(linear.bias()->grad().to(at::kCPU).clone());
    linear.weight().data().mul_(0.5).add_(numbers_of_step({kOut, kIn}, 77 + step, one.dtype).mul_(0.1).to(device));
  }
  return found;
}

std::shared_ptr<const MatmulRecipe> recipe_for(const Case& one) {
  return std::make_shared<const Fp8Recipe>(one.settings, Kernels::kFused);
}

double largest_difference(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = relative_difference(actual[i].to(at::kDouble), expected[i].to(at::kDouble));
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

// In fp32 a sum of 256 products in another order; in bf16 that may fall to the other side of a tie, 2^-8 of the value.
double bound_of(const Case& one) { return one.dtype == at::kFloat ? 1e-5 : 1.0 / 128; }

TEST(Fp8OnDevice, EveryRecipeComputesWhatTheCpuDoes) {
  for (const Case& one : all_cases()) {
    const auto expected = run_steps(one, recipe_for(one), at::kCPU);
    cublaslt().num_fp8_products = cublaslt().num_block_products = 0;
    const auto actual = run_steps(one, recipe_for(one), kAccelerator);
    EXPECT_LT(largest_difference(actual, expected), bound_of(one)) << one.name;
    // Three products of each of six microbatches; a gradient that is not rounded is a product of bf16.
    const int64_t products = one.settings.rounds_wgrad ? 18 : 12;
    EXPECT_EQ(cublaslt().num_fp8_products, products) << one.name << ": " << cublaslt().last_refusal;
    EXPECT_EQ(cublaslt().num_block_products, one.settings.scaling == Fp8Scaling::kBlockwise ? products : 0) << one.name;
  }
}

TEST(Fp8OnDevice, SizesThatTheLibraryDoesNotTakeAreTheReferences) {
  for (const Case& one : all_cases()) {
    const int64_t tokens = 40;  // no multiple of 16
    const auto expected = run_steps(one, recipe_for(one), at::kCPU, tokens);
    cublaslt().num_fp8_products = 0;
    EXPECT_LT(largest_difference(run_steps(one, recipe_for(one), kAccelerator, tokens), expected), bound_of(one))
        << one.name;
    EXPECT_EQ(cublaslt().num_fp8_products, 0) << one.name;
  }
}

TEST(Fp8OnDevice, KernelsReferenceUsesNoLibrary) {
  const Case one = all_cases()[0];
  const auto reference = std::make_shared<const Fp8Recipe>(one.settings, Kernels::kReference);
  const auto expected = run_steps(one, std::make_shared<const Fp8Recipe>(one.settings, Kernels::kReference), at::kCPU);
  cublaslt().num_fp8_products = 0;
  EXPECT_EQ(largest_difference(run_steps(one, reference, kAccelerator), expected), 0);
  EXPECT_EQ(cublaslt().num_fp8_products, 0);
}

TEST(Fp8OnDevice, NothingWaits) {
  for (const Case& one : all_cases()) {
    const Groups groups = Groups::single();
    LayerContext context{.groups = &groups, .dtype = one.dtype, .device = kAccelerator};
    context.recipe = recipe_for(one);
    RecipeMemory& memory = *context.recipe->memory();
    Linear linear(context, "a", kIn, kOut, {.has_bias = true});
    load(linear, golden_weights(linear, one.dtype));
    attach_gradients_there(linear, kAccelerator);
    const at::Tensor x = numbers_of_step({kTokens, kIn}, 1, one.dtype).to(kAccelerator).set_requires_grad(true);
    const at::Tensor dy = numbers_of_step({kTokens, kOut}, 2, one.dtype).to(kAccelerator);
    pretend::forget_waits();
    memory.begin_step();
    memory.begin_forward(0);
    const at::Tensor y = linear.forward(x);
    memory.end_forward(0, groups);
    memory.begin_backward(0);
    y.backward(dy);
    memory.end_backward(0, groups);
    memory.end_step();
    const auto waits = pretend::waits();
    EXPECT_TRUE(waits.empty()) << one.name << ": " << waits.front().what << " in " << waits.front().place;
  }
}

// ---- what is allocated ----

struct MemoryOfAStep {
  int64_t peak, kept;  // beyond what was there; until the end of the step
};

// One microbatch of few tokens through a large weight.
MemoryOfAStep memory_of(const Case& one, int64_t in, int64_t out, Kernels kernels = Kernels::kFused) {
  const int64_t tokens = 128;
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups, .dtype = one.dtype, .device = kAccelerator};
  context.recipe = std::make_shared<const Fp8Recipe>(one.settings, kernels);
  RecipeMemory& memory = *context.recipe->memory();
  Linear linear(context, "a", in, out, {});
  load(linear, golden_weights(linear, one.dtype));
  attach_gradients_there(linear, kAccelerator);
  const at::Tensor x = at::ones({tokens, in}, linear.weight().data().options()).set_requires_grad(true);
  const at::Tensor dy = at::ones({tokens, out}, x.options());
  const auto run = [&] {
    memory.begin_step();
    memory.begin_forward(0);
    const at::Tensor y = linear.forward(x);
    memory.end_forward(0, groups);
    memory.begin_backward(0);
    y.backward(dy);
    memory.end_backward(0, groups);
  };
  run();  // the library's workspace and the input's gradient stay
  memory.end_step();
  reset_peak_memory(kAccelerator);
  const int64_t before = memory_stats(kAccelerator).allocated_bytes;
  run();
  const MemoryStats after = memory_stats(kAccelerator);
  memory.end_step();
  return {after.peak_allocated_bytes - before, after.allocated_bytes - before};
}

TEST(Fp8OnDevice, AStepMakesNoWideCopyOfAWeight) {
  constexpr int64_t kWide = 1024, kBytes = kWide * kWide;  // of the weight in eight bits
  // Beside the copies of the weight: what belongs to 128 tokens (some 128 x 1024 of one and of two bytes), and scales.
  constexpr int64_t kOthers = kBytes;
  for (const Case& one : all_cases()) {
    if (one.dtype != at::kBFloat16) continue;
    const bool keeps_both = one.settings.keeps_weights && one.settings.keeps_transposed_weights;
    const MemoryOfAStep memory = memory_of(one, kWide, kWide);
    EXPECT_LT(memory.peak, 2 * kBytes + kOthers) << one.name;
    EXPECT_GE(memory.peak, kBytes) << one.name;
    const int64_t kept = keeps_both ? 2 * kBytes : one.settings.keeps_weights ? kBytes : 0;
    EXPECT_GE(memory.kept, kept) << one.name;
    EXPECT_LT(memory.kept, kept + kBytes / 16) << one.name;  // scales
  }
  // The reference widens the weight to fp32: the measurement sees it.
  EXPECT_GT(memory_of(all_cases()[0], kWide, kWide, Kernels::kReference).peak, 4 * kBytes);
}

TEST(Fp8OnDevice, WhatIsKeptOfWeightsIsWhatTheReportSays) {
  const Groups groups = Groups::single();
  const auto bytes = [&](const Fp8Settings& settings, at::Device device) {
    LayerContext context{.groups = &groups, .dtype = at::kBFloat16, .device = device};
    context.recipe = std::make_shared<const Fp8Recipe>(settings, Kernels::kFused);
    const Linear linear(context, "a", kIn, kOut, {});
    return context.recipe->memory()->weight_bytes();
  };
  EXPECT_EQ(bytes({}, kAccelerator), 2 * kIn * kOut);
  EXPECT_EQ(bytes({}, at::kCPU), kIn * kOut);
  EXPECT_EQ(bytes({.keeps_transposed_weights = false}, kAccelerator), kIn * kOut);
  EXPECT_EQ(bytes({.keeps_weights = false}, kAccelerator), 0);
}

// ---- mistakes, which the comparison above must see ----

class ForgetsTheInputsScale : public Fp8Recipe {
 public:
  using Fp8Recipe::Fp8Recipe;
  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override {
    Operand operand = Fp8Recipe::take(tensor, role, scope);
    if (role == OperandRole::kInput) operand.factor = at::ones_like(operand.factor);
    return operand;
  }
};

class KeepsAnOldTranspose : public Fp8Recipe {
 public:
  using Fp8Recipe::Fp8Recipe;
  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override {
    Operand operand = Fp8Recipe::take(tensor, role, scope);
    if (role != OperandRole::kWeight) return operand;
    if (!first_.defined()) first_ = operand.transposed.clone();
    operand.transposed = first_;
    return operand;
  }

 private:
  mutable at::Tensor first_;
};

class RecordsTheWeightAsTheInput : public Fp8Recipe {
 public:
  using Fp8Recipe::Fp8Recipe;
  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override {
    const bool is_weight = role == OperandRole::kWeight;
    if (is_weight) (void)Fp8Recipe::take(tensor * 64, OperandRole::kInput, scope);
    return Fp8Recipe::take(tensor, role, scope);
  }
};

class TurnsTheGradientTwice : public Fp8Recipe {
 public:
  using Fp8Recipe::Fp8Recipe;
  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override {
    Operand operand = Fp8Recipe::take(tensor, role, scope);
    if (role == OperandRole::kGradient && operand.transposed.defined()) {
      operand.transposed = operand.values.view(operand.transposed.sizes());
    }
    return operand;
  }
};

template <typename Mistaken>
void expect_seen(const Case& one, const char* what) {
  const auto expected = run_steps(one, recipe_for(one), at::kCPU);
  const auto mistaken = std::make_shared<const Mistaken>(one.settings, Kernels::kFused);
  EXPECT_GT(largest_difference(run_steps(one, mistaken, kAccelerator), expected), 4 * bound_of(one)) << what;
}

TEST(Fp8OnDevice, MistakesAreSeen) {
  const Case tensorwise{"tensorwise", {.scaling = Fp8Scaling::kTensorwise}};
  const Case delayed{"delayed", {.scaling = Fp8Scaling::kDelayed}};
  expect_seen<ForgetsTheInputsScale>(tensorwise, "a scale forgotten");
  expect_seen<ForgetsTheInputsScale>(delayed, "a delayed scale forgotten");
  expect_seen<KeepsAnOldTranspose>(tensorwise, "a transpose of the weights before the optimizer's step");
  expect_seen<KeepsAnOldTranspose>(delayed, "the same with delayed scales");
  expect_seen<RecordsTheWeightAsTheInput>(delayed, "the amax of another operand");
  expect_seen<TurnsTheGradientTwice>(tensorwise, "a gradient read as if it were its transpose");
}

}  // namespace
}  // namespace megalith
