// Eight-bit layers on a GPU with a double for its library: the same numbers as on the CPU, what is read of which
// operand, and what is allocated.
#include "device/memory.h"
#include "pretend/accelerator/waits.h"
#include "pretend/blas/cublaslt.h"
#include "pretend/fp8_steps.h"

namespace megalith {
namespace {

using namespace fp8_steps;
using pretend::cublaslt;

const at::Device kAccelerator(at::kPrivateUse1, 0);
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
