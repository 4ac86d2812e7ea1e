// Eight-bit layers that tensor parallelism cuts, on devices whose library a double stands for, against one rank on the
// CPU: operands are gathered after they were rounded, and turned after they were gathered.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "layouts_pretend/devices_of_ranks.h"
#include "nn/fp8_recipe.h"
#include "nn/linear.h"
#include "pretend/blas/cublaslt.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int kRanks = 2;
constexpr int64_t kSize = 256;  // of tokens, inputs and outputs: each rank's half is a multiple of 128

struct PassOfRank {
  at::Tensor y, dx, dw;  // on the CPU; dw is NaN where another rank holds it
};

// By a generator of its own: ranks are threads, which share LibTorch's.
at::Tensor numbers(uint64_t seed) {
  return at::randn({kSize, kSize}, at::detail::createCPUGenerator(seed), at::TensorOptions());
}

at::Tensor half_of(const at::Tensor& whole, int64_t dim, const Groups& groups) {
  return whole.chunk(groups.tp->size(), dim)[static_cast<size_t>(groups.tp->rank())].contiguous();
}

// One microbatch through one linear layer. In fp32 only the order of sums is between the devices.
PassOfRank run_linear(const Groups& groups, at::Device device, LinearRole role, bool is_sequence_parallel,
                      const Fp8Settings& settings) {
  LayerContext context{
      .groups = &groups, .dtype = at::kFloat, .device = device, .is_sequence_parallel = is_sequence_parallel};
  context.recipe = std::make_shared<const Fp8Recipe>(settings, Kernels::kFused);
  RecipeMemory& memory = *context.recipe->memory();
  Linear linear(context, "a", kSize, kSize, {.role = role});
  load(linear, golden_weights(linear, at::kFloat));
  linear.weight().attach_grad_buffer(at::zeros(linear.weight().value().sizes(), at::TensorOptions(device)));
  linear.weight().begin_step();
  const bool is_row = role == LinearRole::kRow;
  at::Tensor x = numbers(1), dy = numbers(2);
  if (is_row) x = half_of(x, 1, groups);
  if (!is_row) dy = half_of(dy, 1, groups);
  if (is_sequence_parallel) (is_row ? dy : x) = half_of(is_row ? dy : x, 0, groups);
  x = x.to(device).set_requires_grad(true);
  memory.begin_step();
  memory.begin_forward(0);
  const at::Tensor y = linear.forward(x);
  memory.end_forward(0, groups);
  memory.begin_backward(0);
  y.backward(dy.to(device));
  memory.end_backward(0, groups);
  memory.end_step();
  return {y.detach().to(at::kCPU), x.grad().to(at::kCPU), gradients_of(linear).at("a.weight").to(at::kCPU)};
}

TEST(Fp8OnDevicesOfRanks, CutLayersComputeWhatOneRankDoes) {
  for (const Fp8Scaling scaling : {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed, Fp8Scaling::kBlockwise}) {
    const Fp8Settings settings{.scaling = scaling};
    for (const LinearRole role : {LinearRole::kColumn, LinearRole::kRow}) {
      const PassOfRank expected = run_linear(Groups::single(), at::kCPU, role, false, settings);
      for (const bool is_sequence_parallel : {false, true}) {
        pretend::cublaslt().num_fp8_products = 0;
        ThreadWorld(kRanks, {.devices = &devices_of_ranks()}).run(Mesh({.tp = kRanks}), [&](Groups& groups) {
          const PassOfRank pass =
              run_linear(groups, devices_of_ranks().device_of(groups.rank), role, is_sequence_parallel, settings);
          const bool is_row = role == LinearRole::kRow;
          // What this rank has of y and dx: its columns, its rows under sequence parallelism, or all.
          const auto own = [&](const at::Tensor& whole, bool is_cut) {
            if (is_cut) return half_of(whole, 1, groups);
            return is_sequence_parallel ? half_of(whole, 0, groups) : whole;
          };
          const std::string what = std::to_string(static_cast<int>(scaling)) + (is_row ? " row" : " column") +
                                   (is_sequence_parallel ? ", sequence parallel" : "");
          EXPECT_LT(relative_difference(pass.y.to(at::kDouble), own(expected.y, !is_row).to(at::kDouble)), 1e-5)
              << what;
          EXPECT_LT(relative_difference(pass.dx.to(at::kDouble), own(expected.dx, is_row).to(at::kDouble)), 1e-5)
              << what;
          const at::Tensor held = half_of(pass.dw, is_row ? 1 : 0, groups);
          EXPECT_LT(
              relative_difference(held.to(at::kDouble), half_of(expected.dw, is_row ? 1 : 0, groups).to(at::kDouble)),
              1e-5)
              << what;
        });
        EXPECT_EQ(pretend::cublaslt().num_fp8_products, kRanks * 3) << pretend::cublaslt().last_refusal;
      }
    }
  }
}

}  // namespace
}  // namespace megalith
