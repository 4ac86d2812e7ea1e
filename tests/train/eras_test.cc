// Replicas, and options of a run that outlives its ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "kinds/kinds.h"
#include "train/config.h"
#include "train/eras.h"
#include "train/memory_checkpoint.h"

namespace megalith {
namespace {

TEST(Eras, AReplicaWithoutOneOfItsRanksIsNotWhole) {
  // Ranks of a replica: dp is slower than tp, pp slowest.
  const Mesh mesh(Mesh::Sizes{.tp = 2, .dp = 3, .pp = 2, .etp = 2});
  std::vector<int> here;
  for (int rank = 0; rank < 12; ++rank) here.push_back(rank);
  EXPECT_EQ(whole_replicas(mesh, Axis::kDp, here), here);
  std::erase(here, 9);
  EXPECT_EQ(whole_replicas(mesh, Axis::kDp, here), (std::vector<int>{0, 1, 4, 5, 6, 7, 10, 11}));
  EXPECT_EQ(whole_replicas(mesh, Axis::kDp, {0, 2, 4}), std::vector<int>{});
  // Sharded replicas: dp_shard 2, dp_replicate 2.
  const Mesh hybrid(Mesh::Sizes{.dp = 4, .dp_replicate = 2});
  EXPECT_EQ(whole_replicas(hybrid, Axis::kDpReplicate, {0, 1, 3}), (std::vector<int>{0, 1}));
}

// Every position in a replica keeps its neighbours when the ranks are numbered anew.
TEST(Eras, RanksNumberedAnewKeepTheirPlaceInTheirReplica) {
  const Mesh before(Mesh::Sizes{.tp = 2, .cp = 2, .dp = 3, .pp = 2, .etp = 2, .ep = 1});
  const Mesh after(Mesh::Sizes{.tp = 2, .cp = 2, .dp = 2, .pp = 2, .etp = 2, .ep = 1});
  std::vector<int> here;
  for (int rank = 0; rank < before.world_size(); ++rank) {
    if (before.coordinate(Axis::kDp, rank) != 1) here.push_back(rank);
  }
  ASSERT_EQ(std::ssize(here), after.world_size());
  for (int rank = 0; rank < after.world_size(); ++rank) {
    for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kPp}) {
      EXPECT_EQ(after.coordinate(axis, rank), before.coordinate(axis, here[static_cast<size_t>(rank)]));
    }
  }
}

// Ranks' parts differ in size. Those that are lost come anew, with nothing.
std::vector<std::string> recovered(const std::vector<int>& lost, int damaged = -1) {
  constexpr int kRanks = 4;
  std::vector<std::string> said(kRanks);
  ThreadWorld(kRanks).run(Mesh(Mesh::Sizes{.dp = kRanks}), [&](Groups& groups) {
    const int rank = groups.rank;
    const auto part = [&](int64_t iteration) {
      return at::full({100 + 7 * rank}, 10 * rank + iteration, at::kByte);
    };
    auto memory = std::make_unique<MemoryCheckpoint>(/*shift=*/1);
    at::Tensor newest = part(4);
    EXPECT_TRUE(memory->keep(part(2), 2, *groups.world));
    EXPECT_TRUE(memory->keep(newest, 4, *groups.world));
    if (rank == damaged) newest[3] += 1;
    if (std::ranges::count(lost, rank) > 0) memory = std::make_unique<MemoryCheckpoint>(/*shift=*/1);
    std::string why;
    const auto found = memory->recover(*groups.world, why);
    said[static_cast<size_t>(rank)] = !found ? why : at::equal(*found, part(4)) ? "its own" : "another";
  });
  return said;
}

TEST(Eras, ALostPartIsInTheMemoryOfAPartner) {
  const std::vector<std::string> all(4, "its own");
  EXPECT_EQ(recovered({}), all);
  EXPECT_EQ(recovered({3}), all);
  EXPECT_EQ(recovered({0, 2}), all);
  EXPECT_EQ(recovered({1, 2}), std::vector<std::string>(4, "what rank 1 held is in no memory: the partner that had a "
                                                           "copy was lost too"));
  EXPECT_EQ(recovered({3}, 2), std::vector<std::string>(4, "what rank 2 held was changed in memory or on its way"));
}

std::vector<std::string> refusals(std::vector<std::string> words, int64_t world_size) {
  ConfigInputs inputs;
  for (const char* word : {"--num_layers", "2", "--hidden_size", "32", "--num_attention_heads", "4", "--vocab_size",
                           "64", "--seq_length", "16", "--max_position_embeddings", "16", "--device", "cpu", "--fp32",
                           "--mock_data"}) {
    inputs.arguments.emplace_back(word);
  }
  inputs.arguments.insert(inputs.arguments.end(), words.begin(), words.end());
  try {
    resolve_config(all_kinds(), inputs, world_size);
  } catch (const UserErrors& several) {
    std::vector<std::string> texts;
    for (const UserError& error : several.errors()) texts.push_back(error.message() + " | " + error.remedy());
    return texts;
  } catch (const UserError& error) {
    return {error.message() + " | " + error.remedy()};
  }
  return {};
}

TEST(Eras, OnlyWholeReplicasCanLeave) {
  using Words = std::vector<std::string>;
  const struct {
    Words words;
    int64_t ranks;
    const char* refusal;  // null: accepted
  } rows[] = {
      {{}, 2, nullptr},
      {{"--tensor_model_parallel_size", "2"}, 4, nullptr},
      {{"--use_distributed_optimizer", "--num_distributed_optimizer_instances", "2"}, 4, nullptr},
      {{"--use_torch_fsdp2", "--num_distributed_optimizer_instances", "2"}, 4, nullptr},
      {{"--tensor_model_parallel_size", "2"}, 2, "needs two data-parallel replicas"},
      {{"--use_distributed_optimizer"}, 4, "use_distributed_optimizer divides it"},
      {{"--use_torch_fsdp2"}, 4, "use_torch_fsdp2 divides it"},
      {{"--num_experts", "4", "--expert_model_parallel_size", "2"}, 4, "expert_model_parallel_size 2"},
      {{"--optimizer", "muon"}, 2, "optimizer muon"},
      {{"--save", "checkpoints"}, 2, "--save without --load of the same folder"},
      {{"--save", "checkpoints", "--load", "checkpoints"}, 2, nullptr},
      {{"--find_lr"}, 2, "find_lr"},
  };
  const Words anew = {"--fault_tolerance", "restart"};
  EXPECT_EQ(refusals({anew[0], anew[1], "--use_torch_fsdp2", "--optimizer", "muon"}, 2), Words());
  EXPECT_EQ(refusals({anew[0], anew[1], "--find_lr"}, 1).size(), 2u);
  for (const auto& row : rows) {
    Words words = {"--fault_tolerance", "replicas"};
    words.insert(words.end(), row.words.begin(), row.words.end());
    const std::vector<std::string> found = refusals(words, row.ranks);
    std::string all;
    for (const std::string& text : found) all += text + "\n";
    if (row.refusal == nullptr) {
      EXPECT_EQ(all, "");
    } else {
      EXPECT_NE(all.find(row.refusal), std::string::npos) << all;
    }
  }
}

}  // namespace
}  // namespace megalith
