// A rank holds between steps what the Placements say, to the byte, under every way of sharding.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel_options.h"

namespace megalith {
namespace {

struct HeldBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;  // as the program counts them
  int64_t local_elements = 0;                            // of this rank's Placements
  std::map<std::string, int64_t> canonical;              // elements of each canonical tensor held here
};

std::vector<HeldBytes> held_by_ranks(const Mesh& mesh, bool is_sequence_parallel, const DataParallelOptions& options) {
  std::vector<HeldBytes> held(static_cast<size_t>(mesh.world_size()));
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    LayerContext context = test::tiny_context(groups, at::kBFloat16, Kernels::kFused);
    context.is_sequence_parallel = is_sequence_parallel;
    const auto model = test::build_model(test::tiny_config(), context);
    HeldBytes& mine = held[static_cast<size_t>(groups.rank)];
    for (const Parameter* param : model->parameters()) {
      mine.local_elements += param->placement().num_local_elements();
      for (const Piece& piece : param->placement().pieces) {
        mine.canonical[piece.name] += piece.canonical.num_elements();
      }
    }
    const auto data = make_data_parallel(model->parameters(), groups, options, model->blocks(), at::kCPU);
    const Optimizer optimizer(*data, groups, {}, Kernels::kFused);
    mine.parameters = data->parameter_bytes();
    mine.gradients = data->gradient_bytes();
    mine.optimizer = optimizer.num_bytes();
  });
  return held;
}

constexpr int64_t kWeight = 2, kGradient = 4, kState = 12;  // bf16; fp32; master and two moments in fp32

TEST(ShardedBytes, TensorParallelRanksHoldTheirSlicesAndNothingElse) {
  const HeldBytes whole = held_by_ranks(Mesh({.dp = 2}), false, {})[0];
  for (const bool is_sequence_parallel : {false, true}) {
    const auto held = held_by_ranks(Mesh({.tp = 2, .etp = 2}), is_sequence_parallel, {});
    std::map<std::string, int64_t> together;
    for (const HeldBytes& one : held) {
      EXPECT_EQ(one.parameters, kWeight * one.local_elements);
      EXPECT_EQ(one.gradients, kGradient * one.local_elements);
      EXPECT_EQ(one.optimizer, kState * one.local_elements);
      for (const auto& [name, count] : one.canonical) together[name] += count;
    }
    // Norms are on both ranks, all else is cut; padding of the vocabulary has no canonical elements.
    for (const auto& [name, count] : whole.canonical) {
      const bool is_norm = name.find("norm") != std::string::npos;
      EXPECT_EQ(together.at(name), is_norm ? 2 * count : count) << name;
    }
  }
}

TEST(ShardedBytes, ReplicasHoldAllAndShardsTheirPart) {
  for (const int dp : {2, 3, 4}) {
    const Mesh mesh({.dp = dp});
    const int64_t elements = held_by_ranks(mesh, false, {})[0].local_elements;
    for (const HeldBytes& one : held_by_ranks(mesh, false, {})) {
      EXPECT_EQ(one.parameters, kWeight * elements);
      EXPECT_EQ(one.gradients, kGradient * elements);
      EXPECT_EQ(one.optimizer, kState * elements);
    }
    const auto sum = [](const std::vector<HeldBytes>& held, int64_t HeldBytes::*bytes) {
      return std::accumulate(held.begin(), held.end(), int64_t{0},
                             [&](int64_t total, const HeldBytes& one) { return total + one.*bytes; });
    };
    // Optimizer state is cut into runs that cover every element once.
    const auto zero = held_by_ranks(mesh, false, {.use_distributed_optimizer = true});
    EXPECT_EQ(sum(zero, &HeldBytes::optimizer), kState * elements) << dp;
    const auto fsdp = held_by_ranks(mesh, false, {.use_torch_fsdp2 = true});
    EXPECT_EQ(sum(fsdp, &HeldBytes::optimizer), kState * elements) << dp;
    // Units are padded to a multiple of the ranks: less than 64 elements a rank, unit and dtype.
    const int64_t num_units = 1 + test::tiny_config().num_layers;
    EXPECT_GE(sum(fsdp, &HeldBytes::parameters), kWeight * elements) << dp;
    EXPECT_LT(sum(fsdp, &HeldBytes::parameters), kWeight * (elements + num_units * dp * 64)) << dp;
    EXPECT_EQ(sum(fsdp, &HeldBytes::gradients), 2 * sum(fsdp, &HeldBytes::parameters)) << dp;
  }
}

}  // namespace
}  // namespace megalith
