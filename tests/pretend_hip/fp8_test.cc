// Eight-bit layers on AMD's chips, with a double for hipBLASLt: device 0 is a gfx942 (fnuz numbers), device 1 a gfx950.
#include "device/memory.h"
#include "ops/fp8_cast/fp8_cast.h"
#include "pretend/accelerator/waits.h"
#include "pretend/blas/cublaslt.h"
#include "pretend/fp8_steps.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using namespace fp8_steps;
using pretend::cublaslt;

const at::Device kGfx942(at::kPrivateUse1, 0), kGfx950(at::kPrivateUse1, 1);

TEST(Fp8OnAmd, Gfx950ComputesWhatTheCpuDoes) {
  for (const Case& one : all_cases()) {
    const auto expected = run_steps(one, recipe_for(one), at::kCPU);
    cublaslt().num_fp8_products = 0;
    EXPECT_LT(largest_difference(run_steps(one, recipe_for(one), kGfx950), expected), bound_of(one)) << one.name;
    const bool is_blockwise = one.settings.scaling == Fp8Scaling::kBlockwise;  // the reference's
    const int64_t products = is_blockwise ? 0 : one.settings.rounds_wgrad ? 18 : 12;
    EXPECT_EQ(cublaslt().num_fp8_products, products) << one.name << ": " << cublaslt().last_refusal;
  }
}

// Both kinds round to as many bits, at scales that differ by no power of two: by 2^-4 of an operand at most, and mostly
// less in sums of 256.
TEST(Fp8OnAmd, Gfx942ComputesInEightBitsWhatTheCpuDoes) {
  for (const Case& one : all_cases()) {
    const auto expected = run_steps(one, recipe_for(one), at::kCPU);
    cublaslt().num_fp8_products = 0;
    const bool is_blockwise = one.settings.scaling == Fp8Scaling::kBlockwise;  // the reference's, with OCP's numbers
    const double difference = largest_difference(run_steps(one, recipe_for(one), kGfx942), expected);
    EXPECT_LT(difference, is_blockwise ? bound_of(one) : 0.08) << one.name;
    const int64_t products = is_blockwise ? 0 : one.settings.rounds_wgrad ? 18 : 12;
    EXPECT_EQ(cublaslt().num_fp8_products, products) << one.name << ": " << cublaslt().last_refusal;
  }
}

at::Tensor exact(const Operand& operand) {
  return operand.values.cpu().to(at::kFloat).to(at::kDouble) / operand.scale.cpu().to(at::kDouble);
}

TEST(Fp8OnAmd, Gfx942TakesScalesAndNumbersByTransformerEnginesRule) {
  const Fp8Recipe recipe(Fp8Format::kHybrid, Kernels::kFused);
  const std::tuple<OperandRole, at::ScalarType, double> kinds[] = {
      {OperandRole::kInput, at::kFloat8_e4m3fnuz, 240},
      {OperandRole::kWeight, at::kFloat8_e4m3fnuz, 240},
      {OperandRole::kGradient, at::kFloat8_e5m2fnuz, 57344}};
  std::vector<Operand> operands;
  for (const auto& [role, dtype, largest] : kinds) {
    const at::Tensor x = numbers_of_step({128, 128}, 3 + operands.size(), at::kBFloat16);
    const Operand operand = recipe.take(x.to(kGfx942), role, {.is_for_wgrad = true});
    ASSERT_EQ(operand.values.scalar_type(), dtype);
    const at::Tensor scale = largest / x.abs().amax().to(at::kFloat);
    EXPECT_EQ(operand.scale.item<float>(), scale.item<float>());
    const at::Tensor values = (x.to(at::kFloat) * scale).clamp(-largest, largest).to(dtype).view(at::kByte);
    EXPECT_TRUE(operand.values.cpu().view(at::kByte).equal(values)) << "as LibTorch casts";
    operands.push_back(operand);
  }
  const auto& [x, w, dy] = std::tie(operands[0], operands[1], operands[2]);
  const testing::Tolerance within{.rel_to_max = 1.0 / 128};
  EXPECT_TENSOR_NEAR(recipe.forward(x, w, {}).cpu(), exact(x).mm(exact(w).t()), within);
  EXPECT_TENSOR_NEAR(recipe.dgrad(dy, w).cpu(), exact(dy).mm(exact(w)), within);
  const at::Tensor dw = at::zeros({128, 128}, at::TensorOptions(kGfx942).dtype(at::kFloat));
  recipe.wgrad_(dw, dy, x, true);
  EXPECT_TENSOR_NEAR(dw.cpu(), exact(dy).t().mm(exact(x)), {.rel_to_max = 1e-5});
}

TEST(Fp8OnAmd, EitherChipRefusesTheOthersNumbers) {
  for (const auto& [device, dtype] : {std::pair{kGfx942, at::kFloat8_e4m3fn}, {kGfx950, at::kFloat8_e4m3fnuz}}) {
    const at::Tensor a = at::ones({16, 16}).to(dtype).to(device);
    const at::Tensor c = at::empty({16, 16}, a.options().dtype(at::kFloat));
    EXPECT_FALSE(ops::gpu::try_product({.c = c, .a = a, .b = a.t()}));
    EXPECT_EQ(ops::gpu::fp8_products_of(device).are_fnuz, device == kGfx942);
  }
}

// Past amaxes give the same remembered scale on either chip, and a scale in use of that chip's largest number.
TEST(Fp8OnAmd, DelayedScalesMoveBetweenKindsOfChips) {
  const Case delayed{"delayed", {.scaling = Fp8Scaling::kDelayed}};
  const auto remembered = [&](at::Device device) {
    const auto recipe = recipe_for(delayed);
    (void)run_steps(delayed, recipe, device);
    std::vector<at::Tensor> scales;
    for (const RecipeMemory::State& state : recipe->memory()->states()) {
      if (state.key == kFp8ScaleKey) scales.push_back(state.tensor.cpu());
    }
    return scales;
  };
  const auto ocp = remembered(at::kCPU), fnuz = remembered(kGfx942);
  ASSERT_EQ(fnuz.size(), 3u);
  // Inputs and weights of a step do not depend on what was computed.
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(fnuz[i].equal(ocp[i])) << i;
}

TEST(Fp8OnAmd, NothingIsTransposedAndNothingWaits) {
  const Case one{"tensorwise", {.scaling = Fp8Scaling::kTensorwise}};
  const auto recipe = recipe_for(one);
  const at::Tensor x = numbers_of_step({128, 128}, 1, at::kBFloat16).to(kGfx942);
  pretend::forget_waits();
  const Operand operand = recipe->take(x, OperandRole::kInput, {.is_for_wgrad = true});
  (void)recipe->forward(operand, recipe->take(x, OperandRole::kWeight, {}), {});
  EXPECT_FALSE(operand.transposed.defined());
  EXPECT_TRUE(pretend::waits().empty());
}

}  // namespace
}  // namespace megalith
