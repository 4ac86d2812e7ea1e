// Resolving a run's configuration: what follows from what, and what is refused, all of it together.
#include "kinds/kinds.h"
#include "train/config.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "config/record.h"
#include "core/error.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

constexpr const char* kTiny[] = {"--num_layers=2",
                                 "--hidden_size=32",
                                 "--num_attention_heads=4",
                                 "--vocab_size=100",
                                 "--max_position_embeddings=64",
                                 "--swiglu",
                                 "--normalization=RMSNorm",
                                 "--position_embedding_type=rope",
                                 "--disable_bias_linear"};

using Words = std::vector<std::string>;

std::unique_ptr<Resolved> resolve_with(const Words& more, int64_t world_size = 1) {
  ConfigInputs inputs;
  inputs.arguments.assign(std::begin(kTiny), std::end(kTiny));
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, world_size);
}

std::string refusal(const Words& more, int64_t world_size = 1) {
  try {
    resolve_with(more, world_size);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Config, DefaultsFollowFromTheModelAndTheBatch) {
  const auto resolved = resolve_with({"--micro_batch_size=3"});
  const Derived& d = resolved->derived;
  EXPECT_EQ(d.global_batch_size, 3);
  EXPECT_EQ(d.num_microbatches, 1);
  EXPECT_EQ(d.seq_length, 64);
  EXPECT_EQ(d.train_iters, 10);
  EXPECT_EQ(d.train_samples, 30);
  EXPECT_EQ(d.dtype, at::kFloat);
  EXPECT_EQ(d.vocab_size, 100);
  EXPECT_EQ(resolved->tokenizer, nullptr);
}

// A parameter's first value follows from its name, and its name from its unit's.
TEST(Config, UnitsHaveTheNamesOfTheFamily) {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=2", "--hidden_size=64", "--num_attention_heads=2",      "--openai_gelu",
                      "--mock_data",    "--train_iters=1",  "--max_position_embeddings=64", "--vocab_size=100"};
  inputs.config_root = test::source_dir() / "configs";
  EXPECT_EQ(resolve_config(all_kinds(), inputs, 1)->derived.pipeline.units.at(1).name, "transformer.h.0");
  EXPECT_EQ(resolve_with({})->derived.pipeline.units.at(1).name, "model.layers.0");
}

TEST(Config, TrainSamplesGiveWholeGlobalBatches) {
  const auto resolved = resolve_with({"--train_samples=29", "--global_batch_size=4", "--micro_batch_size=2"});
  EXPECT_EQ(resolved->derived.train_iters, 7);
  EXPECT_EQ(resolved->derived.num_microbatches, 2);
}

TEST(Config, ARampGivesTheNumberOfIterationsAndTheSamplesRead) {
  const auto resolved =
      resolve_with({"--train_samples=30", "--global_batch_size=4", "--rampup_batch_size", "1,1,6", "--fp16"});
  const Derived& d = resolved->derived;
  EXPECT_EQ(d.train_iters, d.batches.num_iterations(30));
  EXPECT_EQ(d.schedule_samples, 30);
  EXPECT_GE(d.train_samples, d.batches.consumed_by(d.train_iters));
  EXPECT_GT(d.train_iters, 30 / 4);
  EXPECT_EQ(d.dtype, at::kHalf);
}

TEST(Config, NullTokenizerHasOneIdMoreThanItsVocabulary) {
  const auto resolved = resolve_with({"--tokenizer_type=NullTokenizer"});
  EXPECT_EQ(resolved->derived.vocab_size, 101);
  EXPECT_EQ(resolved->derived.eod_id, 100);
}

TEST(Config, ADryRunResolvesTheLayoutOfMoreRanks) {
  const auto resolved = resolve_with({"--dry_run", "--dry_run_world_size=8", "--tensor_model_parallel_size=2"});
  EXPECT_EQ(resolved->derived.data_parallel_size, 4);
}

TEST(Config, WeightsWithoutMastersThatAreRoundedToTheNearestAreNoted) {
  const Words none = {"--bf16", "--master_weights=none"};
  const auto nearest = resolve_with(none);
  ASSERT_EQ(nearest->notes.size(), 1U);
  EXPECT_NE(nearest->notes[0].find("without stochastic_rounding"), std::string::npos) << nearest->notes[0];
  Words random = none;
  random.emplace_back("--stochastic_rounding");
  EXPECT_TRUE(resolve_with(random)->notes.empty());
}

TEST(Config, SequenceParallelNeedsTensorParallelRanksAndTokensThatDivide) {
  const auto resolved = resolve_with({"--sequence_parallel", "--tensor_model_parallel_size=4"}, 4);
  EXPECT_TRUE(resolved->derived.is_sequence_parallel);
  EXPECT_EQ(resolved->derived.data_parallel_size, 1);
  const auto alone = resolve_with({"--sequence_parallel"});
  EXPECT_FALSE(alone->derived.is_sequence_parallel);
  ASSERT_EQ(alone->notes.size(), 1U);
  EXPECT_EQ(alone->notes[0], "sequence_parallel is off: tensor_model_parallel_size is 1");
  const Words odd = {"--sequence_parallel", "--tensor_model_parallel_size=4", "--seq_length=30"};
  EXPECT_NE(refusal(odd, 4).find("splits the 30 tokens of a microbatch"), std::string::npos) << refusal(odd, 4);
  Words even = odd;
  even.emplace_back("--micro_batch_size=2");
  EXPECT_EQ(refusal(even, 4), "");
}

TEST(Config, ARunThatContinuesByItselfLeavesLoadAsItWasGiven) {
  const test::TemporaryFolder folder;
  const std::string save = (folder.path() / "run").string();
  const Words words = {"--auto_continue_train", "--save", save};
  EXPECT_EQ(resolve_with(words)->derived.checkpoint.load, std::nullopt);
  std::filesystem::create_directories(save);
  std::filesystem::copy(test::source_dir() / "tests/numbers/checkpoints/dense/saved", save,
                        std::filesystem::copy_options::recursive);
  const auto resolved = resolve_with(words);
  EXPECT_EQ(resolved->derived.checkpoint.load, save);
  EXPECT_EQ(resolved->config.checkpoint.load, std::nullopt);
  EXPECT_FALSE(resolved->options->find("load")->is_set());
}

TEST(Config, WhatFsdpDoesByItselfIsOffAndStaysInTheRecord) {
  Resolved resolved(all_kinds());
  ConfigInputs inputs;
  inputs.arguments.assign(std::begin(kTiny), std::end(kTiny));
  resolve(*resolved.options, inputs);
  // As a preset would have them: what a person writes beside use_torch_fsdp2 is an error.
  resolved.config.data_parallel.use_torch_fsdp2 = resolved.config.data_parallel.use_distributed_optimizer = true;
  const Configuration before = configuration_of(*resolved.options);
  std::vector<UserError> errors;
  derive_and_check(resolved, 2, errors);
  ASSERT_TRUE(errors.empty()) << errors.front().what();
  EXPECT_TRUE(resolved.derived.data_parallel.use_torch_fsdp2);
  EXPECT_FALSE(resolved.derived.data_parallel.use_distributed_optimizer);
  EXPECT_EQ(configuration_of(*resolved.options), before);
}

TEST(Config, EveryPresetAloneIsAConfiguration) {
  const std::filesystem::path folder = test::source_dir() / "configs" / "models";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ConfigInputs inputs;
    inputs.arguments = {"--config", entry.path().string()};
    inputs.config_root = folder.parent_path();
    EXPECT_NO_THROW(resolve_config(all_kinds(), inputs, 1)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 18);
}

struct Refusal {
  Words arguments;
  const char* message;
};

TEST(Config, WhatCannotWorkIsRefusedWithTheNumbers) {
  const Refusal refusals[] = {
      {{"--global_batch_size=5", "--micro_batch_size=2"},
       "global_batch_size 5 is not a multiple of micro_batch_size 2 times the data-parallel size 1\n  use 4 or 6"},
      {{"--seq_length=65"}, "seq_length 65 is larger than max_position_embeddings 64"},
      {{"--train_iters=1", "--train_samples=1"}, "train_iters and train_samples are both given"},
      {{"--bf16", "--fp32"}, "bf16 and fp32 are both given"},
      {{"--bf16", "--fp16"}, "bf16 and fp16 are both given"},
      {{"--fp16", "--initial_loss_scale=1", "--min_loss_scale=2"},
       "initial_loss_scale 1 is less than min_loss_scale 2"},
      {{"--loss_scale=8"}, "loss_scale 8 is given without fp16"},
      {{"--exp_avg_dtype=bf16"}, "exp_avg_dtype bf16 and exp_avg_sq_dtype fp32 differ"},
      {{"--exp_avg_dtype=bf16", "--exp_avg_sq_dtype=bf16"}, "exp_avg_dtype bf16 needs use_precision_aware_optimizer"},
      {{"--master_weights=remainder"}, "master_weights remainder is about bf16 weights, and the model is fp32"},
      {{"--master_weights=none", "--fp16"}, "master_weights none is about bf16 weights, and the model is fp16"},
      {{"--master_weights=none", "--bf16", "--optimizer=sgd"}, "master_weights none with optimizer sgd"},
      {{"--stochastic_rounding", "--bf16"}, "stochastic_rounding has nothing to round"},
      {{"--rampup_batch_size", "1,1,8", "--global_batch_size=4"},
       "rampup_batch_size is given, but train_samples is not"},
      {{"--rampup_batch_size", "1,2,8", "--global_batch_size=4", "--train_samples=9"}, "do not lead from 1 to"},
      {{"--step_batch_size_schedule=0:4", "--global_batch_size=4"}, "and global_batch_size are both given"},
      {{"--step_batch_size_schedule=1K:4", "--seq_length=16"}, "does not begin at 0"},
      {{"--step_batch_size_schedule=0:4"}, "seq_length is not given"},
      {{"--step_batch_size_schedule=0:4", "--lr_warmup_iters=2"}, "size changes with step_batch_size_schedule"},
      {{"--rampup_batch_size", "1,1,8", "--global_batch_size=4", "--train_samples=99", "--lr_warmup_iters=2"},
       "lr_warmup_iters 2 counts steps, whose size changes with rampup_batch_size\n  use lr_warmup_samples"},
      {{"--exit_duration_in_mins=0"}, "exit_duration_in_mins"},
      {{"--min_lr=1"}, "min_lr 1 is larger than lr"},
      {{"--lr_warmup_iters=10"}, "the warm-up of 10 samples is not shorter than the decay of 10 samples"},
      {{"--num_attention_heads=5"}, "5"},
      {{"--tensor_model_parallel_size=2"}, "2"},
      {{"--hidden_sise=3"}, "Did you mean"},
      {{"--adam_beta1=1"}, "adam_beta1"},
      {{"--mock_data", "--data_path", "x"}, "mock_data and a data path are given together"},
      {{"--load_hf=/nonexistent"}, "/nonexistent"},
  };
  for (const Refusal& expected : refusals) {
    EXPECT_NE(refusal(expected.arguments).find(expected.message), std::string::npos)
        << expected.arguments[0] << " gave: " << refusal(expected.arguments);
  }
}

TEST(Config, AllThatIsWrongIsSaidTogether) {
  const std::string text = refusal({"--seq_length=65", "--bf16", "--fp32", "--min_lr=1"});
  EXPECT_NE(text.find("seq_length"), std::string::npos);
  EXPECT_NE(text.find("bf16"), std::string::npos);
  EXPECT_NE(text.find("min_lr"), std::string::npos);
}

}  // namespace
}  // namespace megalith
