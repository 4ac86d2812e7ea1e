// A run's estimated memory is what its objects then hold.
#include "kinds/kinds.h"
#include "train/memory_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "comm/thread_world.h"
#include "core/log.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace megalith {
namespace {

using EstimateWords = std::vector<std::string>;

std::unique_ptr<Resolved> resolve_estimated(const EstimateWords& more, int64_t world_size) {
  ConfigInputs inputs;
  inputs.arguments = {
      "--num_layers=3",        "--hidden_size=64", "--num_attention_heads=4",      "--vocab_size=250",
      "--seq_length=32",       "--swiglu",         "--normalization=RMSNorm",      "--position_embedding_type=rope",
      "--disable_bias_linear", "--mock_data",      "--max_position_embeddings=32", "--eval_iters=0"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, world_size);
}

struct EstimateCase {
  const char* name;
  int64_t world_size;
  EstimateWords words;
};

class EveryEstimate : public testing::TestWithParam<EstimateCase> {};

// The same objects on the meta device: equal to the byte, on every rank.
TEST_P(EveryEstimate, IsWhatTheTrainersObjectsHold) {
  const auto resolved = resolve_estimated(GetParam().words, GetParam().world_size);
  const Mesh mesh = Mesh::from_options(resolved->config.parallel, GetParam().world_size);
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    const MemoryEstimate estimate = estimate_memory(*resolved, groups.rank);
    const BuiltModel built = build_model(*resolved, groups, at::kCPU, !resolved->derived.data_parallel.use_torch_fsdp2);
    const auto data = make_data_parallel(*resolved, built, groups, at::kCPU);
    const Optimizer optimizer(*data, groups, resolved->config.optimizer, Kernels::kFused);
    EXPECT_EQ(estimate.rank, groups.rank);
    EXPECT_EQ(estimate.parameters, data->parameter_bytes());
    EXPECT_EQ(estimate.gradients, data->gradient_bytes());
    EXPECT_EQ(estimate.masters + estimate.optimizer, optimizer.num_bytes());
    EXPECT_GT(estimate.activations, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    MemoryEstimate, EveryEstimate,
    testing::Values(EstimateCase{"one", 1, {}}, EstimateCase{"bf16", 1, {"--bf16"}},
                    EstimateCase{"remainder", 1, {"--bf16", "--master_weights=remainder"}},
                    EstimateCase{"sgd", 1, {"--optimizer=sgd"}},
                    EstimateCase{"lion", 1, {"--bf16", "--optimizer=lion"}},
                    EstimateCase{"adafactor", 2, {"--bf16", "--optimizer=adafactor", "--tensor_model_parallel_size=2"}},
                    EstimateCase{"zero_adafactor", 2, {"--use_distributed_optimizer", "--optimizer=adafactor"}},
                    EstimateCase{
                        "adam8bit",
                        2,
                        {"--bf16", "--optimizer=adam8bit", "--min_8bit_size=64", "--tensor_model_parallel_size=2"}},
                    EstimateCase{"zero_adam8bit",
                                 2,
                                 {"--use_distributed_optimizer", "--optimizer=adam8bit", "--min_8bit_size=64"}},
                    EstimateCase{"muon", 2, {"--bf16", "--optimizer=muon"}},
                    EstimateCase{"zero", 2, {"--bf16", "--use_distributed_optimizer"}},
                    EstimateCase{"zero_muon", 2, {"--bf16", "--use_distributed_optimizer", "--optimizer=muon"}},
                    EstimateCase{"fsdp", 3, {"--bf16", "--use_torch_fsdp2"}},
                    EstimateCase{"tensor", 2, {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
                    EstimateCase{"pipeline", 3, {"--pipeline_model_parallel_size=3", "--global_batch_size=4"}}),
    [](const auto& info) { return info.param.name; });

// On a device with a memory of its own these options move bytes to the host's, and none appears or is lost.
TEST(MemoryEstimate, WhatLiesOnTheHostIsBesideTheDevice) {
  const auto estimate = [](EstimateWords words) {
    words.insert(words.end(), {"--bf16", "--use_torch_fsdp2"});
    return estimate_memory(*resolve_estimated(words, 2), 0);
  };
  const auto states = [](EstimateWords words) {
    words.emplace_back("--bf16");
    return estimate_memory(*resolve_estimated(words, 1), 0);
  };
  const MemoryEstimate plain = states({}), all = states({"--optimizer_cpu_offload"});
  EXPECT_EQ(plain.host.total(), 0);
  EXPECT_EQ(all.host.masters, plain.masters);
  EXPECT_EQ(all.host.optimizer, plain.optimizer);
  EXPECT_EQ(all.masters + all.optimizer, 0);
  EXPECT_EQ(all.total() + all.host.total(), plain.total());
  EXPECT_EQ(all.of_one_memory().total(), plain.total());

  const MemoryEstimate half = states({"--optimizer_cpu_offload", "--optimizer_offload_fraction=0.5"});
  EXPECT_GT(half.host.masters, 0);
  EXPECT_LE(2 * half.host.masters, plain.masters);
  EXPECT_EQ(half.of_one_memory().total(), plain.total());

  const MemoryEstimate sharded = estimate({}), runs = estimate({"--fsdp_cpu_offload"});
  EXPECT_EQ(runs.host.parameters, sharded.parameters);
  EXPECT_EQ(runs.host.gradients, sharded.gradients);
  EXPECT_EQ(runs.host.masters + runs.host.optimizer, sharded.masters + sharded.optimizer);
  EXPECT_EQ(runs.parameters + runs.gradients + runs.masters + runs.optimizer, 0);
  EXPECT_EQ(runs.communication, sharded.communication);
  EXPECT_NE(memory_table(runs, 2).find("host: parameters"), std::string::npos);
}

TEST(MemoryEstimate, ALogitOfEachTokenIsTheHeads) {
  // 32 tokens of 64 000 ids: logits in fp32 and their gradient are 16 MB, and all else is small.
  const auto resolved = resolve_estimated({"--vocab_size=64000"}, 1);
  const MemoryEstimate estimate = estimate_memory(*resolved, 0);
  EXPECT_GT(estimate.logits, 32 * 64000 * 4);
  EXPECT_LT(estimate.activations, estimate.logits);
  EXPECT_EQ(estimate.total(), estimate.parameters + estimate.masters + estimate.optimizer + estimate.gradients +
                                  estimate.activations + estimate.logits + estimate.data);
}

TEST(MemoryEstimate, RowsNameOnlyWhoHoldsSomething) {
  const auto resolved = resolve_estimated({}, 1);
  const MemoryEstimate estimate = estimate_memory(*resolved, 0);
  int64_t sum = 0;
  for (const MemoryRow& row : estimate.rows()) {
    EXPECT_GT(row.bytes, 0) << row.owner;
    EXPECT_NE(row.owner, "master weights");  // fp32 weights are their own
    EXPECT_NE(row.owner, "communication");   // one rank
    sum += row.bytes;
  }
  EXPECT_EQ(sum, estimate.total());
}

TEST(MemoryEstimate, TheStageThatHoldsMostIsShown) {
  // The head's and the embedding's tables are most of this model, so the stages between them hold less.
  const auto resolved = resolve_estimated({"--vocab_size=64000", "--untie_embeddings_and_output_weights",
                                           "--pipeline_model_parallel_size=3", "--global_batch_size=3"},
                                          3);
  const MemoryEstimate largest = estimate_largest(estimate_stages(*resolved));
  for (int rank = 0; rank < 3; ++rank) EXPECT_LE(estimate_memory(*resolved, rank).total(), largest.total()) << rank;
  EXPECT_NE(largest.rank, 1);
}

TEST(MemorySavings, AreThoseThatTheRunHasNotTakenAndThatHelp) {
  const auto words_of = [](const EstimateWords& more, int64_t world_size, int64_t missing, bool may_add_ranks) {
    const auto resolved = resolve_estimated(more, world_size);
    EstimateWords words;
    const MemoryEstimate estimate = estimate_memory(*resolved, 0);
    for (const MemorySaving& saving : cheapest_savings(*resolved, estimate, missing, may_add_ranks)) {
      EXPECT_GE(saving.bytes, missing / 10) << saving.words;
      words.push_back(saving.words);
    }
    return words;
  };
  const auto some = words_of({"--bf16"}, 2, 1000, false);
  EXPECT_EQ(some.size(), 3u);
  EXPECT_EQ(some.at(0), "--use_distributed_optimizer");
  EXPECT_EQ(some.at(1), "--master_weights remainder");
  // Options that would save too little to matter are not named, and neither are those already in use.
  EXPECT_TRUE(words_of({"--bf16"}, 1, int64_t{1} << 40, true).empty());
  for (const std::string& word : words_of({"--bf16", "--use_distributed_optimizer"}, 2, 1000, true)) {
    EXPECT_NE(word, "--use_distributed_optimizer");
  }
  // More ranks help where each brings memory. Two thirds of this model are matrices that tensor parallelism cuts.
  const EstimateWords all = {"--bf16",
                             "--master_weights=remainder",
                             "--micro_batch_size=1",
                             "--recompute_granularity=full",
                             "--recompute_method=uniform",
                             "--recompute_num_layers=1",
                             "--use_precision_aware_optimizer",
                             "--exp_avg_dtype=bf16",
                             "--exp_avg_sq_dtype=bf16",
                             "--main_grads_dtype=bf16"};
  EXPECT_EQ(words_of(all, 1, 100'000, true).at(0), "--tensor_model_parallel_size 2 on 2 ranks");
  for (const std::string& word : words_of(all, 1, 100'000, false)) EXPECT_EQ(word.find("ranks"), std::string::npos);
}

// With the run's other options: its gradients stay narrow.
TEST(MemorySavings, OfFsdpAreThoseOfTheRunWithThatOptionToo) {
  EstimateWords words = {"--bf16",
                         "--master_weights=remainder",
                         "--micro_batch_size=1",
                         "--recompute_granularity=full",
                         "--recompute_method=uniform",
                         "--recompute_num_layers=1",
                         "--main_grads_dtype=bf16"};
  const auto resolved = resolve_estimated(words, 2);
  const MemoryEstimate estimate = estimate_memory(*resolved, 0);
  words.emplace_back("--use_torch_fsdp2");
  const int64_t expected = estimate.total() - estimate_memory(*resolve_estimated(words, 2), 0).total();
  const auto savings = cheapest_savings(*resolved, estimate, /*missing_bytes=*/1000, /*may_add_ranks=*/false);
  const auto found = std::find_if(savings.begin(), savings.end(),
                                  [](const MemorySaving& saving) { return saving.words == "--use_torch_fsdp2"; });
  ASSERT_NE(found, savings.end());
  EXPECT_EQ(found->bytes, expected);
}

// ---- What there is ----

class MemoryThereTest : public testing::Test {
 protected:
  void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  test::TemporaryFolder folder_;
};

constexpr const char* kMeminfo = "MemTotal: 1048576 kB\nMemFree: 1024 kB\nMemAvailable: 524288 kB\n";

TEST_F(MemoryThereTest, IsWhatTheMachineHasFreeForEachRank) {
  EXPECT_FALSE(memory_there(at::kCPU, 1, folder_.path()).has_value());  // no file tells
  write("proc/meminfo", kMeminfo);
  const auto there = memory_there(at::kCPU, 4, folder_.path());
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(there->bytes, (int64_t{512} << 20) / 4);
  EXPECT_EQ(there->text, "512 MiB of 1.00 GiB of main memory are free, for 4 ranks");
}

TEST_F(MemoryThereTest, AControlGroupMayLeaveLess) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", std::to_string(int64_t{256} << 20));
  write("sys/fs/cgroup/memory.current", std::to_string(int64_t{200} << 20));
  EXPECT_EQ(memory_there(at::kCPU, 1, folder_.path())->bytes, int64_t{56} << 20);
  // Files that were read are not in the way.
  write("sys/fs/cgroup/memory.stat",
        fmt::format("anon 5\ninactive_file {}\nactive_file {}\n", int64_t{100} << 20, int64_t{50} << 20));
  const auto there = memory_there(at::kCPU, 1, folder_.path());
  EXPECT_EQ(there->bytes, int64_t{206} << 20);
  EXPECT_EQ(there->text, "the control group allows 256 MiB, of which 50.0 MiB are in use");
  write("sys/fs/cgroup/memory.max", std::to_string(int64_t{2} << 30));
  EXPECT_EQ(memory_there(at::kCPU, 1, folder_.path())->bytes, int64_t{512} << 20);
}

TEST(MemoryCheck, RefusesWhatDoesNotFitUnlessAsked) {
  const auto resolved = resolve_estimated({}, 1);
  const MemoryEstimate estimate = estimate_memory(*resolved, 0);
  EXPECT_NO_THROW(check_memory(*resolved, estimate, at::kCPU, MemoryThere{estimate.total(), "enough"}));
  EXPECT_NO_THROW(check_memory(*resolved, estimate, at::kCPU, std::nullopt));
  const MemoryThere little{estimate.total() - 1, "a byte less"};
  try {
    check_memory(*resolved, estimate, at::kCPU, little);
    FAIL() << "it was not refused";
  } catch (const UserError& error) {
    const std::string text = error.what();
    for (const char* part :
         {"rank 0 needs about", "a byte less", "it holds parameters", " saves ", "--allow_oversubscription"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  const auto asked = resolve_estimated({"--allow_oversubscription"}, 1);
  EXPECT_NO_THROW(check_memory(*asked, estimate, at::kCPU, little));
}

TEST(MemoryCheck, KnowsTheErrorsThatSayMemoryRanOut) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("can't allocate memory")));
  try {
    // More than any address space has.
    at::empty({int64_t{1} << 55}, at::kFloat);
    FAIL() << "it was allocated";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
    const auto resolved = resolve_estimated({}, 1);
    const MemoryEstimate estimate = estimate_memory(*resolved, 0);
    const std::string text =
        out_of_memory_text(error, *resolved, estimate, at::kCPU, MemoryThere{5, "little was free"});
    for (const char* part :
         {"out of memory: rank 0 needs about", "5 B were there", "little was free", "it holds parameters", " saves "}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
}

}  // namespace
}  // namespace megalith
