// The training loop on a tiny model: precision, ramp-up, stopping and saving, and that a resumed run is the same run.
#include "kinds/kinds.h"
#include "kinds/text/generation.h"
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "checkpoint/checkpoint_folder.h"
#include "comm/thread_world.h"
#include "device/threads.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using test::TemporaryFolder;
using Words = std::vector<std::string>;

struct Recorded : MetricsSink {
  explicit Recorded(std::vector<StepRecord>& records) : records(records) {}
  void on_step(const StepRecord& record) override {
    records.push_back(record);
    if (record.iteration == stop_at) stop->store(15);
  }
  void on_generation(const GenerationRecord& record) override {
    if (samples != nullptr) samples->push_back(record);
  }
  std::vector<StepRecord>& records;
  std::vector<GenerationRecord>* samples = nullptr;
  StopRequest* stop = nullptr;
  int64_t stop_at = -1;  // iteration after which a signal comes
};

struct Ran {
  StopReason reason = StopReason::kFinished;
  std::vector<StepRecord> steps;
  std::vector<GenerationRecord> samples;
  std::vector<at::Tensor> weights;
  std::string log;
  int64_t iteration = 0;
};

std::unique_ptr<Resolved> resolve_tiny(const Words& more, int64_t world_size) {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=1",
                      "--hidden_size=32",
                      "--num_attention_heads=2",
                      "--vocab_size=64",
                      "--max_position_embeddings=16",
                      "--swiglu",
                      "--normalization=RMSNorm",
                      "--mock_data",
                      "--position_embedding_type=rope",
                      "--disable_bias_linear",
                      "--eval_iters=0",
                      "--lr=1e-2",
                      "--lr_decay_style=constant",
                      "--micro_batch_size=2"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, world_size);
}

Ran train(const Words& more, const Groups& groups = Groups::single(), StopRequest* stop = nullptr,
          int64_t stop_at = -1) {
  const SingleThreadedScope one_thread;  // nothing here is worth waking another
  const auto resolved = resolve_tiny(more, groups.world->size());
  Ran ran;
  Logger log{LoggerSettings{.write = [&](std::string_view line) { ran.log += line; }}};
  StopRequest never{0};
  Trainer trainer(*resolved, groups, at::kCPU, log, stop != nullptr ? *stop : never);
  trainer.load();
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  auto recorded = std::make_unique<Recorded>(ran.steps);
  recorded->samples = &ran.samples;
  recorded->stop = stop;
  recorded->stop_at = stop_at;
  sinks.push_back(std::move(recorded));
  ran.reason = trainer.run(std::move(sinks));
  ran.iteration = trainer.iteration();
  for (const Parameter* param : trainer.model().parameters()) {
    const bool is_there = param->data().storage().nbytes() > 0;  // FSDP gives memory back
    if (is_there) ran.weights.push_back(param->data().clone());
  }
  return ran;
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_same_weights(const Ran& a, const Ran& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << i;
}

// Loss and gradient norm of the run's steps from `first` on are those of `straight`, bit for bit.
void expect_continues(const Ran& resumed, const Ran& straight, size_t first) {
  ASSERT_EQ(resumed.steps.size() + first, straight.steps.size());
  for (size_t i = 0; i < resumed.steps.size(); ++i) {
    const StepRecord &a = resumed.steps[i], &b = straight.steps[i + first];
    EXPECT_EQ(a.losses, b.losses) << b.iteration;
    EXPECT_EQ(a.grad_norm, b.grad_norm) << b.iteration;
    EXPECT_EQ(a.consumed_samples, b.consumed_samples) << b.iteration;
    EXPECT_EQ(a.global_batch_size, b.global_batch_size) << b.iteration;
    EXPECT_EQ(a.loss_scale, b.loss_scale) << b.iteration;
    EXPECT_EQ(a.learning_rate, b.learning_rate) << b.iteration;
    EXPECT_EQ(a.skipped_samples, b.skipped_samples) << b.iteration;
  }
  expect_same_weights(resumed, straight);
}

TEST(Trainer, ItsReportKnowsAVocabularyThatTheTokenizerGave) {
  const auto resolved = resolve_tiny({"--vocab_size=null"}, /*world_size=*/1);
  Logger log{LoggerSettings{.write = [](std::string_view) {}}};
  StopRequest never{0};
  const Groups alone = Groups::single();
  const Trainer trainer(*resolved, alone, at::kCPU, log, never);
  EXPECT_NE(trainer.report("the CPU").find("vocabulary 257 (padded 384)"), std::string::npos);
}

TEST(Trainer, Fp16FindsItsScaleSkippingStepsAndThenFollowsFp32) {
  const Words common = {"--train_iters=40", "--global_batch_size=4"};
  const Ran fp16 = train(common + Words{"--fp16", "--hysteresis=1"});
  const Ran fp32 = train(common);
  EXPECT_TRUE(fp16.steps.front().is_skipped);  // no gradient of fp16 survives 2^32
  int64_t num_skipped = 0;
  for (const StepRecord& step : fp16.steps) {
    num_skipped += step.is_skipped;
    EXPECT_EQ(step.loss_scale, std::ldexp(1.0, static_cast<int>(32 - num_skipped))) << step.iteration;
  }
  EXPECT_GT(num_skipped, 8);
  EXPECT_LT(num_skipped, 30);
  EXPECT_FALSE(fp16.steps.back().is_skipped);
  // Before its first update fp16 has the loss and, once unscaled, the norm of fp32: 11 bits, and a few roundings.
  EXPECT_NEAR(fp16.steps[0].losses[0].second, fp32.steps[0].losses[0].second, 5e-3);
  // Fewer updates, so not the same loss; but it learns.
  EXPECT_LT(fp16.steps.back().losses[0].second, fp16.steps.front().losses[0].second - 0.05);
  // Ranks that each see a part of the gradient skip the same steps.
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    const Ran parts = train(common + Words{"--fp16", "--hysteresis=1", "--use_torch_fsdp2"}, groups);
    for (size_t i = 0; i < fp16.steps.size(); ++i) {
      EXPECT_EQ(parts.steps[i].is_skipped, fp16.steps[i].is_skipped) << i;
      // Roundings of 11 bits, in another order, in each of up to 30 updates.
      EXPECT_NEAR(parts.steps[i].losses[0].second, fp16.steps[i].losses[0].second, 2e-2) << i;
    }
  });
}

TEST(Trainer, AFixedScaleOfFp16ChangesNothingButTheScale) {
  const Words common = {"--train_iters=5", "--global_batch_size=4", "--fp16"};
  const Ran low = train(common + Words{"--loss_scale=128"}), high = train(common + Words{"--loss_scale=512"});
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(low.steps[i].loss_scale, 128);
    // fp16 keeps 11 bits; what is subnormal at one scale and not at the other is far below that in the norm.
    EXPECT_NEAR(*low.steps[i].grad_norm, *high.steps[i].grad_norm, 1e-2 * *high.steps[i].grad_norm) << i;
  }
}

TEST(Trainer, AFixedScaleThatOverflowsStopsTheRun) {
  EXPECT_THROW(train({"--train_iters=2", "--fp16", "--loss_scale=1e30"}), std::runtime_error);
}

TEST(Trainer, Fp16ResumesWithItsScaleAndItsPlaceInTheSchedule) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=30",      "--global_batch_size=2",   "--fp16",
                        "--loss_scale_window=3", "--lr_decay_style=linear", "--lr_warmup_iters=5"};
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  const Ran straight = train(common);
  const Ran first = train(common + saved + Words{"--exit_interval=23"});
  EXPECT_EQ(first.reason, StopReason::kExitInterval);
  expect_continues(train(common + saved), straight, 23);
}

TEST(Trainer, SkippedStepsDoNotMoveTheSchedule) {
  const Ran ran = train({"--train_iters=3", "--fp16", "--initial_loss_scale=1e30", "--lr_decay_style=linear"});
  for (const StepRecord& step : ran.steps) EXPECT_EQ(step.learning_rate, 1e-2);
}

TEST(Trainer, ARampedRunResumesInTheMiddleOfItsRamp) {
  const TemporaryFolder folder;
  const Words common = {"--train_samples=60",     "--global_batch_size=8", "--rampup_batch_size", "2,2,18", "--bf16",
                        "--lr_decay_style=linear"};
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  const Ran straight = train(common);
  std::vector<int64_t> sizes;
  for (const StepRecord& step : straight.steps) sizes.push_back(step.global_batch_size);
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2, 4, 4, 6, 8, 8, 8, 8, 8}));  // 6 consumed samples an increment
  EXPECT_EQ(straight.steps.back().train_iters, 11);
  EXPECT_EQ(train(common + saved + Words{"--exit_interval=4"}).iteration, 4);
  expect_continues(train(common + saved), straight, 4);
}

TEST(Trainer, ARunOfGivenStepsResumesBetweenThem) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=7", "--seq_length=16", "--step_batch_size_schedule=0:2 80:4 224:6", "--bf16",
                        "--lr_decay_style=linear"};
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  const Ran straight = train(common);
  std::vector<int64_t> sizes;
  for (const StepRecord& step : straight.steps) sizes.push_back(step.global_batch_size);
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2, 4, 4, 6, 6}));
  EXPECT_EQ(straight.steps.back().consumed_samples, 26);
  EXPECT_EQ(train(common + saved + Words{"--exit_interval=4"}).iteration, 4);
  expect_continues(train(common + saved), straight, 4);
}

TEST(Trainer, EachSizeOfARampLeavesACheckpoint) {
  const TemporaryFolder folder;
  train({"--train_samples=30", "--global_batch_size=6", "--rampup_batch_size", "2,2,12", "--save",
         folder.path().string()});
  EXPECT_EQ(list_checkpoints(folder.path()).front(), 3);  // sizes 2 2 2 4 4 6 6…: before the first step of 4
}

TEST(Trainer, WhatRoundingLeavesOutIsCounted) {
  const Ran ran = train({"--train_iters=3", "--global_batch_size=5", "--decrease_batch_size_if_needed"});
  EXPECT_EQ(ran.steps.back().global_batch_size, 4);
  EXPECT_EQ(ran.steps.back().consumed_samples, 12);
  EXPECT_EQ(ran.steps.back().skipped_samples, 3);
}

TEST(Trainer, ItsTimeOverItSavesAndStops) {
  const TemporaryFolder folder;
  const Ran ran = train({"--train_iters=1000", "--exit_duration_in_mins=1e-9", "--save", folder.path().string()});
  EXPECT_EQ(ran.reason, StopReason::kExitDuration);
  EXPECT_EQ(ran.iteration, 1);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{1}));
}

// Every step is late. A checkpoint by time goes when the next one is there; those of save_interval stay.
TEST(Trainer, CheckpointsByTimeReplaceOneAnother) {
  const Words common = {"--train_iters=5", "--global_batch_size=4"};
  const Ran straight = train(common);
  for (const Words& more : {Words{}, Words{"--save_interval=2"}, Words{"--async_save"}}) {
    const TemporaryFolder folder;
    const Words saved = {"--save", folder.path().string(), "--save_interval_in_mins=1e-9"};
    const Ran ran = train(common + saved + more);
    expect_same_weights(ran, straight);
    for (int i = 1; i <= 5; ++i) {
      EXPECT_NE(ran.log.find(fmt::format("saved the checkpoint of iteration {} ", i)), std::string::npos) << ran.log;
    }
    const bool has_interval = more == Words{"--save_interval=2"};
    EXPECT_EQ(list_checkpoints(folder.path()),
              has_interval ? std::vector<int64_t>({2, 4, 5}) : std::vector<int64_t>{5});
  }
}

TEST(Trainer, RanksAgreeOnCheckpointsByTime) {
  const TemporaryFolder folder;
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    // The first rank's clock only.
    const std::string minutes = groups.rank == 0 ? "1e-9" : "1e9";
    train({"--train_iters=3", "--save", folder.path().string(), "--save_interval_in_mins", minutes}, groups);
  });
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3}));
}

TEST(Trainer, ASignalToOneRankStopsAllAtTheSameStep) {
  const TemporaryFolder folder;
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    StopRequest stop{0};
    const Ran ran = train({"--train_iters=1000", "--save", folder.path().string()}, groups, &stop,
                          /*stop_at=*/groups.rank == 1 ? 2 : -1);
    EXPECT_EQ(ran.reason, StopReason::kSignal);
    // It came while the second step was being reported, after the ranks had voted in it: the third is the last.
    EXPECT_EQ(ran.iteration, 3);
  });
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3}));
}

TEST(Trainer, AsynchronousCheckpointsAreThoseOfTheStepTheyName) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=12", "--global_batch_size=4", "--bf16"};
  const Words saved = {"--save", folder.path().string(), "--save_interval=3", "--async_save"};
  const Ran straight = train(common);
  expect_same_weights(train(common + saved), straight);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3, 6, 9, 12}));
  for (const size_t step : {3, 6, 9}) {
    expect_continues(train(common + Words{"--load", folder.path().string(), "--ckpt_step", std::to_string(step)}),
                     straight, step);
  }
}

TEST(Trainer, ASignalBeforeTheFirstStepLeavesACheckpointOfIterationZero) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=6", "--global_batch_size=4"};
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  StopRequest stop{15};
  const Ran stopped = train(common + saved, Groups::single(), &stop);
  EXPECT_EQ(stopped.reason, StopReason::kSignal);
  EXPECT_EQ(stopped.iteration, 0);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{0}));
  expect_continues(train(common + saved), train(common), 0);
}

TEST(Trainer, ARunThatWasLoadedFromElsewhereSavesToItsOwnFolderWhenStopped) {
  const TemporaryFolder first, second;
  const Words common = {"--train_iters=6"};
  train(common + Words{"--save", first.path().string(), "--exit_interval=3"});
  StopRequest stop{2};
  const Words moved = {"--load", first.path().string(), "--save", second.path().string()};
  EXPECT_EQ(train(common + moved, Groups::single(), &stop).iteration, 3);
  EXPECT_EQ(list_checkpoints(second.path()), (std::vector<int64_t>{3}));
}

TEST(Trainer, SamplingChangesNothing) {
  for (const char* precision : {"--fp32", "--bf16", "--fp16"}) {
    const Words common = {"--train_iters=6", "--global_batch_size=4", "--hidden_dropout=0.1",
                          precision,         "--loss_scale_window=2", "--initial_loss_scale=64"};
    const Ran without = train(common);
    const Ran with = train(common + Words{"--sample_interval=2", "--sample_prompt_ids=1,2,3", "--top_k=5"});
    expect_continues(with, without, 0);
    ASSERT_EQ(with.samples.size(), 3u) << precision;
    EXPECT_TRUE(without.samples.empty());
    EXPECT_EQ(with.samples[1].iteration, 4);
    EXPECT_EQ(with.samples[1].prompt, "1 2 3");
  }
}

TEST(Trainer, ASampleIsWhatTheModelOfThatStepGenerates) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=8", "--save_interval=4", "--lr=3e-2"};
  const Words sampling = {"--sample_interval=4", "--sample_prompt_ids=1,2,3", "--sample_max_new_tokens=5",
                          "--hidden_dropout=0.3"};
  const Ran ran = train(common + sampling + Words{"--save", folder.path().string()});
  ASSERT_EQ(ran.samples.size(), 2u);
  for (const GenerationRecord& sample : ran.samples) {
    const auto resolved = resolve_tiny(
        {"--load", folder.path().string(), "--ckpt_step", std::to_string(sample.iteration)}, /*world_size=*/1);
    Logger log{LoggerSettings{.write = [](std::string_view) {}}};
    const Groups alone = Groups::single();
    const BuiltModel built = build_model(*resolved, alone, at::kCPU);
    load_weights(*resolved, built, alone, log);
    PipelinedModel model(built.view(), alone, at::kCPU);
    const std::vector<int64_t> ids =
        generate_tokens(model, {.prompt_ids = {1, 2, 3}, .max_new_tokens = 5, .stop_ids = {}}, 1, at::kCPU);
    std::string text;
    for (const int64_t id : ids) text += " " + std::to_string(id);
    EXPECT_EQ(sample.continuation, text) << sample.iteration;
  }
}

TEST(Trainer, AllRanksSampleTheSame) {
  std::array<std::vector<GenerationRecord>, 2> samples;
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    samples.at(static_cast<size_t>(groups.rank)) =
        train({"--train_iters=4", "--sample_interval=2", "--sample_prompt_ids=1"}, groups).samples;
  });
  ASSERT_EQ(samples[0].size(), 2u);
  ASSERT_EQ(samples[1].size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(samples[0][i].continuation, samples[1][i].continuation);
}

TEST(Trainer, SamplesOfAModelWithACapacityAreTheSameOnEveryLayout) {
  // Experts that take a third of their share would drop most choices of the prompt, and copies of it others. Three
  // layers: what the prompt's tokens lost would reach all that is generated, through their keys and values.
  const Words common = {"--num_layers=3",
                        "--train_iters=2",
                        "--global_batch_size=2",
                        "--seq_length=16",
                        "--num_experts=4",
                        "--moe_router_topk=2",
                        "--moe_expert_capacity_factor=0.3",
                        "--sample_interval=1",
                        "--sample_prompt_ids=1,2,3,4,5,6,7,8",
                        "--sample_max_new_tokens=8",
                        "--init_method_std=0.3"};
  const Ran alone = train(common);
  ASSERT_EQ(alone.samples.size(), 2u);
  const std::vector<std::pair<Mesh, Words>> layouts = {
      {Mesh({.tp = 2}), {"--tensor_model_parallel_size=2"}},
      {Mesh({.tp = 2}), {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
      {Mesh({.cp = 2, .ep = 2}), {"--context_parallel_size=2", "--expert_model_parallel_size=2"}},
      {Mesh({.tp = 2, .etp = 1, .ep = 2}),
       {"--tensor_model_parallel_size=2", "--sequence_parallel", "--expert_model_parallel_size=2",
        "--expert_tensor_parallel_size=1", "--moe_pad_expert_input_to_capacity"}}};
  for (const auto& [mesh, options] : layouts) {
    ThreadWorld(2).run(mesh, [&, &options = options](Groups& groups) {
      const Ran ran = train(common + options, groups);
      ASSERT_EQ(ran.samples.size(), 2u);
      // The same tokens are dropped in training, so the weights are the same to rounding.
      EXPECT_NEAR(ran.steps.back().losses.at(0).second, alone.steps.back().losses.at(0).second, 1e-4) << options.back();
      for (size_t i = 0; i < 2; ++i) EXPECT_EQ(ran.samples[i].continuation, alone.samples[i].continuation);
    });
  }
}

// Each parameter counts once, whether its replicas, its slices or its shards are on several ranks: the embedding is
// tied, so the two ends of a pipeline both hold it.
TEST(Trainer, TheNormOfTheParametersIsThatOfTheWholeModelOnEveryLayout) {
  const Words common = {"--num_layers=2", "--train_iters=3", "--global_batch_size=4", "--log_params_norm"};
  const Ran one = train(common);
  double square = 0;
  for (const at::Tensor& weight : one.weights) square += weight.to(at::kDouble).square().sum().item<double>();
  ASSERT_TRUE(one.steps.back().params_norm);
  // Sums of squares in float64, in another order.
  EXPECT_NEAR(*one.steps.back().params_norm, std::sqrt(square), 1e-12 * std::sqrt(square));
  EXPECT_NE(one.steps[0].params_norm, one.steps[1].params_norm);
  const std::vector<std::pair<Mesh, Words>> layouts = {
      {Mesh({.tp = 2}), {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
      {Mesh({.cp = 2}), {"--context_parallel_size=2"}},
      {Mesh({.pp = 2}), {"--pipeline_model_parallel_size=2"}},
      {Mesh({.dp = 2}), {"--use_distributed_optimizer"}},
      {Mesh({.dp = 2}), {"--use_torch_fsdp2"}}};
  for (const auto& [mesh, options] : layouts) {
    ThreadWorld(2).run(mesh, [&, &options = options](Groups& groups) {
      const Ran ran = train(common + options, groups);
      for (size_t i = 0; i < 3; ++i) {
        // In fp32 and another order of sums a step differs by some 1e-6 of itself, and a step is 1e-2 an element. The
        // norm is near 13, and a matrix that is missing or counted twice changes it by more than 1e-2.
        EXPECT_NEAR(*ran.steps[i].params_norm, *one.steps[i].params_norm, 1e-4) << options.back() << ", step " << i + 1;
      }
    });
  }
}

TEST(Trainer, TheNormOfTheParametersIsThatOfTheMastersAndOnlyOfLoggedSteps) {
  const Words common = {"--train_iters=5", "--global_batch_size=2", "--bf16", "--log_interval=3"};
  const Ran ran = train(common + Words{"--log_params_norm"});
  for (const StepRecord& step : ran.steps)
    EXPECT_EQ(step.params_norm.has_value(), step.iteration == 3 || step.iteration == 5);
  double square = 0;
  for (const at::Tensor& weight : ran.weights) square += weight.to(at::kDouble).square().sum().item<double>();
  // The model's weights are the masters, each rounded by at most 2^-9 of itself; the norm of the masters is not theirs.
  EXPECT_NEAR(*ran.steps.back().params_norm, std::sqrt(square), 0x1p-9 * std::sqrt(square));
  EXPECT_NE(*ran.steps.back().params_norm, std::sqrt(square));
  for (const StepRecord& step : train(common).steps) EXPECT_FALSE(step.params_norm);
}

TEST(Trainer, ReadingAheadChangesNothing) {
  const TemporaryFolder folder;
  const Words common = {"--train_samples=60", "--global_batch_size=8", "--rampup_batch_size", "2,2,18",
                        "--hidden_dropout=0.1"};
  const Ran none = train(common + Words{"--num_workers=0"});
  for (const char* num_workers : {"1", "2", "5"}) {
    expect_continues(train(common + Words{"--num_workers", num_workers}), none, 0);
  }
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string(), "--num_workers=3"};
  train(common + saved + Words{"--exit_interval=4"});
  expect_continues(train(common + saved), none, 4);
}

TEST(Trainer, RecomputationChangesNothingAlsoBetweenARunAndTheOneThatResumesIt) {
  const TemporaryFolder folder;
  const Words common = {"--num_layers=3", "--train_iters=6", "--hidden_dropout=0.1", "--attention_dropout=0.1",
                        "--bf16"};
  const Words uniform = {"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=2",
                         "--cpu_offloading_num_layers=2"};
  const Words selective = {"--recompute_activations", "--recompute_modules", "core_attn,layernorm,mlp_act"};
  const Ran none = train(common);
  expect_continues(train(common + uniform), none, 0);
  expect_continues(train(common + selective), none, 0);
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  train(common + saved + uniform + Words{"--exit_interval=3"});
  const Ran resumed = train(common + saved + selective);
  expect_continues(resumed, none, 3);
  EXPECT_EQ(resumed.log.find("recompute"), std::string::npos) << resumed.log;
}

TEST(Trainer, Bf16MomentsTrainAndResume) {
  const TemporaryFolder folder;
  const Words common = {"--train_iters=8",       "--bf16",
                        "--exp_avg_dtype=bf16",  "--exp_avg_sq_dtype=bf16",
                        "--global_batch_size=4", "--use_precision_aware_optimizer"};
  const Words saved = {"--save", folder.path().string(), "--load", folder.path().string()};
  const Ran straight = train(common);
  train(common + saved + Words{"--exit_interval=5"});
  expect_continues(train(common + saved), straight, 5);
}

}  // namespace
}  // namespace megalith
