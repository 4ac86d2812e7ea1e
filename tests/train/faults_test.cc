// Actions of a run when its loss jumps, its gradient is large, or its memory changes under it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "device/threads.h"
#include "kinds/kinds.h"
#include "support/injection_seed.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/loss_watch.h"
#include "train/trainer.h"

namespace megalith::faults {
namespace {

using test::TemporaryFolder;
using Words = std::vector<std::string>;

struct Told {
  StopReason reason = StopReason::kFinished;
  std::vector<StepRecord> steps;
  std::vector<EventRecord> events;
  std::vector<at::Tensor> weights;
  std::string log;
  std::string error;
};

// While a run computes these iterations, its last matrix, which makes the logits, is many times what it was, and
// negative: the model is sure of what is wrong, and the loss jumps.
struct Spoiler : MetricsSink {
  Spoiler(Told& told, std::set<int64_t> iterations, bool is_silent)
      : told(told), iterations(std::move(iterations)), is_silent(is_silent) {}

  void begin(const Trainer& trainer) {
    matrix = trainer.model().parameters().back()->data();
    for (const Parameter* param : trainer.model().parameters()) {
      if (param->data().dim() == 2) matrix = param->data();
    }
    prepare(trainer.iteration());
  }
  void prepare(int64_t done) {
    const bool is_next = iterations.contains(done + 1);
    if (is_next && !sound.defined()) {
      sound = matrix.clone();
      matrix.mul_(factor);
    } else if (!is_next && sound.defined()) {
      if (!is_silent) matrix.copy_(sound);
      sound = at::Tensor();
    }
  }
  void on_step(const StepRecord& record) override {
    told.steps.push_back(record);
    prepare(record.iteration);
  }
  void on_event(const EventRecord& record) override { told.events.push_back(record); }

  Told& told;
  std::set<int64_t> iterations;
  bool is_silent;
  double factor = -300;
  at::Tensor matrix, sound;
};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Told train(const Words& more, const std::set<int64_t>& spoiled = {}, const Groups& groups = Groups::single(),
           double factor = -300, bool is_silent = false, std::vector<EventRecord>* events_of_a_fault = nullptr) {
  const SingleThreadedScope one_thread;
  ConfigInputs inputs;
  inputs.arguments = Words{"--num_layers=1",         "--hidden_size=32",     "--num_attention_heads=2",
                           "--vocab_size=64",        "--mock_data",          "--max_position_embeddings=16",
                           "--swiglu",               "--eval_iters=0",       "--position_embedding_type=rope",
                           "--disable_bias_linear",  "--lr=1e-3",            "--lr_decay_style=constant",
                           "--micro_batch_size=2",   "--untie_embeddings_and_output_weights",
                           "--global_batch_size=4"} +
                     more;
  inputs.config_root = test::source_dir() / "configs";
  const auto resolved = resolve_config(all_kinds(), inputs, groups.world->size());
  Told told;
  Logger log{LoggerSettings{.write = [&](std::string_view line) { told.log += line; }}};
  StopRequest never{0};
  Trainer trainer(*resolved, groups, at::kCPU, log, never);
  trainer.load();
  auto spoiler = std::make_unique<Spoiler>(told, spoiled, is_silent);
  spoiler->factor = factor;
  spoiler->begin(trainer);
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::move(spoiler));
  try {
    told.reason = trainer.run(std::move(sinks));
  } catch (const StepFault& fault) {
    if (events_of_a_fault != nullptr) *events_of_a_fault = told.events;
    throw;
  } catch (const std::runtime_error& error) {
    told.error = error.what();
  }
  for (const Parameter* param : trainer.model().parameters()) told.weights.push_back(param->data().clone());
  return told;
}

void expect_same_weights(const Told& a, const Told& b, const std::string& what) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << what << ", parameter " << i;
  }
}

Words action(const std::string& name, int64_t iters) {
  return {"--loss_spike_action=" + name, "--loss_spike_window=24", fmt::format("--train_iters={}", iters)};
}

Words saving(const TemporaryFolder& folder, int64_t interval) {
  return {"--save=" + folder.path().string(), fmt::format("--save_interval={}", interval)};
}

TEST(LossWatch, TheLimitIsMedianAndDeviationOfLossesUpToTheStepBeforeTheLast) {
  // Median 3, deviations 2 1 0 1 2: their median is 1.
  const std::vector<double> losses = {5, 1, 3, 2, 4};
  EXPECT_DOUBLE_EQ(spike_limit(losses, 10), 3 + 10 * 1.4826);
  EXPECT_DOUBLE_EQ(spike_limit(std::vector<double>{2, 2, 2, 2}, 10), 2 + 10 * 0.002);
  EXPECT_DOUBLE_EQ(spike_limit(std::vector<double>{1, 2}, 1), 1.5 + 1.4826 * 0.5);
  FaultOptions options;
  options.loss_spike_action = LossSpikeAction::kSkip;
  options.loss_spike_window = 4;
  LossWatch watch(options);
  const auto is_open = [&](int64_t iteration) { return std::isinf(watch.limit(iteration)); };
  watch.add(1, 2.0);
  EXPECT_TRUE(is_open(2));
  watch.add(2, std::numeric_limits<double>::quiet_NaN());
  watch.add(3, 4.0);
  EXPECT_TRUE(is_open(4)) << "of two losses one is the last step's";
  EXPECT_DOUBLE_EQ(watch.limit(5), spike_limit(std::vector<double>{2, 4}, 10));
  for (int64_t i = 4; i <= 9; ++i) {
    // An accelerator has not read the last loss yet.
    const double before = watch.limit(i + 1);
    watch.add(i, static_cast<double>(i));
    EXPECT_EQ(watch.limit(i + 1), before);
  }
  EXPECT_DOUBLE_EQ(watch.limit(10), spike_limit(std::vector<double>{5, 6, 7, 8}, 10));
  std::map<std::string, double> numbers;
  watch.save(numbers);
  LossWatch again(options);
  again.load(numbers);
  EXPECT_EQ(again.limit(10), watch.limit(10));
  EXPECT_EQ(again.limit(11), watch.limit(11));
  numbers["loss_of_iteration_x"] = 1;
  EXPECT_THROW(again.load(numbers), UserError);
}

TEST(Faults, FiftySpikesGetFiftyRightActions) {
  const uint32_t seed = injection_seed(7);
  std::mt19937 random(seed);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  const std::vector<std::string> names = {"warn", "skip", "rollback"};
  int num_right = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string& name = names[static_cast<size_t>(i) % 3];
    const int64_t interval = draw(4, 9), drawn = draw(16, 26), iters = 30;
    // The injection spoils the weights before a checkpoint of the step before would be saved.
    const int64_t spike = (drawn - 1) % interval == 0 ? drawn + 1 : drawn;
    Words words = action(name, iters) + Words{fmt::format("--seed={}", 1 + seed % 1000 + static_cast<uint32_t>(i))};
    const TemporaryFolder saved;
    if (name == "rollback") words = words + saving(saved, interval);
    const Told told = train(words, {spike});
    const std::string what = fmt::format("{} {} at {}: {} {}", i, name, spike, told.error, told.log);
    ASSERT_EQ(told.error, "") << what;
    ASSERT_EQ(std::ssize(told.steps), iters) << what;
    ASSERT_EQ(told.events.size(), 1U) << what;
    const EventRecord& event = told.events[0];
    bool is_right = event.iteration == spike && event.end_sample == 4 * spike;
    for (const StepRecord& step : told.steps) {
      is_right = is_right && step.is_skipped == (step.iteration == spike && name != "warn");
      is_right = is_right && step.consumed_samples == 4 * step.iteration;
    }
    const int64_t checkpoint = (spike - 1) / interval * interval;
    is_right = is_right && event.kind == (name == "rollback" ? "rollback" : "loss_spike");
    is_right = is_right && event.begin_sample == 4 * (name == "rollback" ? checkpoint : spike - 1);
    EXPECT_TRUE(is_right) << what;
    num_right += is_right;
  }
  EXPECT_EQ(num_right, 50);
  std::printf("%d spikes\n", num_right);
}

TEST(Faults, NoActionLeavesASpikeAlone) {
  const Told told = train(action("none", 24), {20});
  EXPECT_TRUE(told.events.empty());
  EXPECT_FALSE(told.steps[19].is_skipped);
}

TEST(Faults, ARollbackIsARunThatNeverTookTheSamples) {
  const TemporaryFolder a, b, c;
  const Told back = train(action("rollback", 32) + saving(a, 8), {20});
  ASSERT_EQ(back.events.size(), 1U);
  EXPECT_EQ(back.events[0].begin_sample, 4 * 16);
  // The same samples left out one by one: from the checkpoint's iteration on no step was made.
  const Told skipped = train(action("skip", 32), {17, 18, 19, 20});
  EXPECT_EQ(skipped.events.size(), 4U);
  expect_same_weights(back, skipped, "a run that skipped them");
  // And after a rollback a run resumes as any other does.
  const Told first = train(action("rollback", 32) + saving(b, 8) + Words{"--exit_interval=24"}, {20});
  ASSERT_EQ(first.reason, StopReason::kExitInterval);
  const Told resumed = train(action("rollback", 32) + saving(b, 8) + Words{"--load=" + b.path().string()});
  EXPECT_TRUE(resumed.events.empty());
  EXPECT_EQ(resumed.steps.front().iteration, 25);
  expect_same_weights(resumed, back, "resumed behind the rollback");
}

TEST(Faults, ARunGoesBackABoundedNumberOfTimes) {
  const TemporaryFolder folder;
  // Resuming does not count anew.
  const Words words = action("rollback", 40) + saving(folder, 6) + Words{"--loss_spike_max_rollbacks=2"};
  const Told twice = train(words, {20, 26, 33});
  EXPECT_EQ(twice.events.size(), 2U);
  EXPECT_NE(twice.error.find("has gone back 2 times"), std::string::npos) << twice.error;
  EXPECT_EQ(twice.steps.back().iteration, 33);
  const Told again = train(words + Words{"--load=" + folder.path().string()}, {34});
  EXPECT_TRUE(again.events.empty());
  EXPECT_NE(again.error.find("has gone back 2 times"), std::string::npos) << again.error;
}

TEST(Faults, WithoutACheckpointARollbackSkips) {
  const TemporaryFolder folder;
  const Told told = train(action("rollback", 24) + saving(folder, 1000), {20});
  ASSERT_EQ(told.events.size(), 1U);
  EXPECT_EQ(told.events[0].kind, "loss_spike");
  EXPECT_NE(told.events[0].text.find("no checkpoint"), std::string::npos);
  EXPECT_TRUE(told.steps[19].is_skipped);
}

TEST(Faults, ALossThatIsNotFiniteIsASpikeToo) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Told skipped = train(action("skip", 8), {3}, Groups::single(), nan);  // before any limit is known
  EXPECT_EQ(skipped.error, "");
  ASSERT_EQ(skipped.events.size(), 1U);
  EXPECT_TRUE(skipped.steps[2].is_skipped && skipped.steps[2].is_nan);
  EXPECT_TRUE(std::isfinite(skipped.steps[3].losses[0].second));
  const Told warned = train(action("warn", 8), {3}, Groups::single(), nan);
  EXPECT_NE(warned.error.find("iteration 3"), std::string::npos) << "warn changes nothing about what is not finite";
}

TEST(Faults, AStepWithALargeGradientIsNotMade) {
  const Words words = {"--train_iters=12"};
  const Told plain = train(words);
  std::vector<double> norms;
  for (const StepRecord& step : plain.steps) norms.push_back(*step.grad_norm);
  const Told first_out = train(words + Words{fmt::format("--grad_norm_skip_threshold={}", norms[0] * 1.5)}, {5});
  ASSERT_EQ(first_out.events.size(), 1U);
  EXPECT_EQ(first_out.events[0].kind, "large_gradient");
  EXPECT_TRUE(first_out.steps[4].is_skipped);
  EXPECT_EQ(first_out.error, "");
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(first_out.steps[i].grad_norm, plain.steps[i].grad_norm);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Told not_finite = train(words + Words{"--grad_norm_skip_threshold=1e9"}, {5}, Groups::single(), nan);
  EXPECT_EQ(not_finite.error, "");
  EXPECT_TRUE(not_finite.steps[4].is_skipped);
}

TEST(Faults, AllRanksDoTheSameAboutASpike) {
  const TemporaryFolder folder;
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    // A fault on one rank makes the loss of all jump.
    const std::set<int64_t> spoiled = groups.rank == 1 ? std::set<int64_t>{20} : std::set<int64_t>{};
    const Told told = train(action("rollback", 24) + saving(folder, 8) + Words{"--check_sync=23"}, spoiled, groups);
    EXPECT_EQ(told.error, "");
    ASSERT_EQ(told.events.size(), 1U);
    EXPECT_EQ(told.events[0].kind, "rollback");
  });
}

TEST(Faults, AWeightThatChangesBetweenStepsEndsTheRun) {
  const Words words = {"--train_iters=8", "--check_determinism=4", "--deterministic_mode"};
  EXPECT_EQ(train(words).steps.size(), 8U);
  std::vector<EventRecord> events;
  try {
    train(words, {3}, Groups::single(), -300, /*is_silent=*/false, &events);
    FAIL() << "nothing was found";
  } catch (const StepFault& fault) {
    EXPECT_EQ(fault.exit_code(), kExitTransientFault);
    EXPECT_EQ(fault.where(), StepFault::Where::kState);
    EXPECT_NE(std::string(fault.what()).find("iteration 3"), std::string::npos) << fault.what();
    EXPECT_NE(std::string(fault.what()).find("rank 0"), std::string::npos) << fault.what();
    // The files of the run have the sentence too.
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].kind, "step_fault");
    EXPECT_EQ(events[0].iteration, 3);
    EXPECT_EQ(std::string(fault.what()).find(events[0].text + "\n"), 0U) << events[0].text;
    EXPECT_EQ(events[0].begin_sample, 8);
    EXPECT_EQ(events[0].end_sample, 12);
  }
}

TEST(Faults, CheckingChangesNoNumber) {
  const Words words = {"--train_iters=6", "--hidden_dropout=0.1", "--deterministic_mode"};
  const Told plain = train(words), checked = train(words + Words{"--check_determinism=1"});
  expect_same_weights(plain, checked, "checked at every step");
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(plain.steps[i].grad_norm, checked.steps[i].grad_norm);
}

}  // namespace
}  // namespace megalith::faults
