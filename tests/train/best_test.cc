// What a run does with its evaluations: the best are kept, it ends once they get no better, and a resumed run is the
// same.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "comm/thread_world.h"
#include "device/threads.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/best_watch.h"
#include "train/trainer.h"

namespace megalith::best {
namespace {

using test::TemporaryFolder;
using Words = std::vector<std::string>;

struct Told {
  StopReason reason = StopReason::kFinished;
  std::vector<ValidationRecord> evaluations;
  std::vector<EventRecord> events;
  std::vector<at::Tensor> weights;
  int64_t iteration = 0;

  std::map<int64_t, double> figures() const {
    std::map<int64_t, double> found;
    for (const ValidationRecord& one : evaluations) found[one.iteration] = one.losses.at(0).second;
    return found;
  }
};

struct Recorded : MetricsSink {
  explicit Recorded(Told& told) : told(told) {}
  void on_step(const StepRecord&) override {}
  void on_validation(const ValidationRecord& record) override {
    if (record.set != "test") told.evaluations.push_back(record);
    if (record.set == "test" && stop != nullptr) stop->store(15);
  }
  void on_event(const EventRecord& record) override { told.events.push_back(record); }
  Told& told;
  StopRequest* stop = nullptr;  // set by a signal during the test
};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Told train(const Words& more, const Groups& groups = Groups::single(), bool stops_in_test = false) {
  const SingleThreadedScope one_thread;
  ConfigInputs inputs;
  inputs.arguments = Words{"--num_layers=1",
                           "--hidden_size=32",
                           "--num_attention_heads=2",
                           "--vocab_size=64",
                           "--max_position_embeddings=16",
                           "--mock_data",
                           "--position_embedding_type=rope",
                           "--eval_iters=1",
                           "--eval_interval=2",
                           "--lr=3e-2",
                           "--lr_decay_style=constant",
                           "--micro_batch_size=2",
                           "--global_batch_size=4"} +
                     more;
  inputs.config_root = test::source_dir() / "configs";
  const auto resolved = resolve_config(all_kinds(), inputs, groups.world->size());
  Told told;
  Logger log({.level = LogLevel::kSilent});
  StopRequest stop{0};
  Trainer trainer(*resolved, groups, at::kCPU, log, stop);
  trainer.load();
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  auto recorded = std::make_unique<Recorded>(told);
  if (stops_in_test) recorded->stop = &stop;
  sinks.push_back(std::move(recorded));
  told.reason = trainer.run(std::move(sinks));
  told.iteration = trainer.iteration();
  for (const Parameter* param : trainer.model().parameters()) told.weights.push_back(param->data().clone());
  return told;
}

std::set<int64_t> kept_in(const TemporaryFolder& folder) {
  const std::vector<int64_t> list = list_checkpoints(folder.path());
  return {list.begin(), list.end()};
}

TEST(BestWatch, CountsEvaluationsWithoutAGainAsTransformersDoes) {
  BestWatch watch({.keep_best = 2, .early_stopping_patience = 2, .early_stopping_threshold = 0.1});
  EXPECT_EQ(watch.choose({{"validation", "lm loss", 0}, {"validation", "accuracy", 0}}), 0u);
  const std::vector<std::pair<double, int64_t>> values = {
      {3, 0}, {2, 0}, {1.95, 1}, {1.9, 2}, {1.7, 0}, {std::nan(""), 1}, {1.7, 2}};
  std::map<std::string, double> numbers;
  int64_t iteration = 0;
  for (const auto& [value, in_vain] : values) {
    // A watch that goes on from stored numbers is the same one.
    BestWatch resumed({.keep_best = 2, .early_stopping_patience = 2, .early_stopping_threshold = 0.1});
    numbers.clear();
    watch.save(numbers);
    resumed.load(numbers);
    resumed.choose({{"validation", "lm loss", 0}});
    watch = resumed;
    watch.add(++iteration, value);
    watch.add(iteration, -100);  // judged once
    EXPECT_EQ(watch.num_in_vain(), in_vain) << iteration;
    EXPECT_EQ(watch.ends_run(), in_vain == 2) << iteration;
  }
  // The earlier of equals is the better.
  ASSERT_EQ(watch.best().size(), 2u);
  EXPECT_EQ(watch.best()[0].iteration, 5);
  EXPECT_EQ(watch.best()[1].iteration, 7);
  EXPECT_TRUE(watch.keeps(7) && !watch.keeps(4));
}

TEST(BestWatch, TakesFiguresByTheirNames) {
  const std::vector<ShownFigure> figures = {
      {"validation-code", "lm loss", 0}, {"validation-prose", "lm loss", 0}, {"validation-prose", "accuracy", 0}};
  const auto place = [&](const char* name) {
    return BestWatch({.keep_best = 1, .metric_for_best_model = name}).choose(figures);
  };
  EXPECT_EQ(place("code_lm_loss"), 0u);
  EXPECT_EQ(place("eval_prose_loss"), 1u);
  EXPECT_EQ(place("prose accuracy"), 2u);
  EXPECT_THROW(place("f1"), UserError);
  // A set's name may begin as Hugging Face's figures do.
  BestWatch watch({.keep_best = 1, .metric_for_best_model = "eval_code_lm_loss"});
  EXPECT_EQ(watch.choose({{"validation-code", "accuracy", 0}, {"validation-eval_code", "lm loss", 0}}), 1u);
}

TEST(BestWatch, RefusesDamagedNumbers) {
  for (const double value : {-1.0, 0.5, 1e300, std::nan("")}) {
    BestWatch watch({.keep_best = 1});
    watch.load({{"lm_loss last judged", value}});
    EXPECT_THROW(watch.choose({{"validation", "lm loss", 0}}), UserError) << value;
  }
}

TEST(BestOptions, AreRefusedWhereNothingReadsThem) {
  const auto errors = [](const BestOptions& options) {
    return check_best_options(options, /*saves=*/true, /*evaluates=*/true).size();
  };
  EXPECT_EQ(errors({.keep_best = 1, .early_stopping_threshold = 0.1}), 1u);
  EXPECT_EQ(errors({.early_stopping_patience = 2, .early_stopping_threshold = 0.1}), 0u);
}

TEST(BestCheckpoints, AreKeptBesideTheNewestAndLoadedAtTheEnd) {
  const TemporaryFolder folder;
  // Losses fall, so that by greater_is_better early ones are the best.
  const Words words = {"--train_iters=11",    "--save=" + folder.path().string(), "--save_interval=3", "--keep_best=2",
                       "--greater_is_better", "--load_best_model_at_end"};
  const Told told = train(words);
  std::vector<std::pair<double, int64_t>> judged;
  for (const auto& [iteration, value] : told.figures()) judged.emplace_back(-value, iteration);
  ASSERT_EQ(judged.size(), 6u);  // 2, 4, 6, 8, 10 and the end
  std::sort(judged.begin(), judged.end());
  const std::set<int64_t> best = {judged[0].second, judged[1].second};
  std::set<int64_t> expected = best;
  expected.insert(11);
  EXPECT_EQ(kept_in(folder), expected);
  ASSERT_LT(*best.begin(), 8) << "the newest are the best, so keeping them shows nothing";
  double most = -std::numeric_limits<double>::infinity();
  for (const ValidationRecord& one : told.evaluations) {
    EXPECT_EQ(one.is_best, one.losses[0].second > most) << one.iteration;
    most = std::max(most, one.losses[0].second);
  }
  const Told short_run = train({"--train_iters=" + std::to_string(judged[0].second)});
  for (size_t i = 0; i < told.weights.size(); ++i) EXPECT_TRUE(at::equal(told.weights[i], short_run.weights[i])) << i;
  // Started again at its end, it evaluates the last weights and then loads the best.
  const Told again = train(words + Words{"--load=" + folder.path().string()});
  EXPECT_EQ(again.figures().at(11), told.figures().at(11));
  for (size_t i = 0; i < told.weights.size(); ++i) EXPECT_TRUE(at::equal(again.weights[i], told.weights[i])) << i;
}

TEST(BestCheckpoints, AreNotSavedAgainAsTheLastAtASignal) {
  const TemporaryFolder folder;
  const Words words = {"--train_iters=7", "--save=" + folder.path().string(), "--greater_is_better",
                       "--load_best_model_at_end", "--disable_last_saving"};
  const Told told = train(words, Groups::single(), /*stops_in_test=*/true);
  EXPECT_EQ(told.reason, StopReason::kSignal);
  ASSERT_EQ(told.evaluations.back().iteration, 7);
  ASSERT_EQ(told.evaluations.back().is_best, false) << "the last is the best, so loading it shows nothing";
  EXPECT_FALSE(kept_in(folder).contains(7));
}

TEST(EarlyStopping, EndsARunAlikeOnAnyRanksAndWhenResumed) {
  const TemporaryFolder folder, of_ranks;
  const Words stops = {"--train_iters=40", "--early_stopping_patience=3", "--greater_is_better"};
  const Words saves = {"--save=" + folder.path().string(), "--load=" + folder.path().string()};
  const std::map<int64_t, double> all = train({"--train_iters=40"}).figures();
  int64_t in_vain = 0, end = 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const auto& [iteration, value] : all) {
    in_vain = value > best ? 0 : in_vain + 1;
    best = std::max(best, value);
    end = iteration;
    if (in_vain == 3) break;
  }
  ASSERT_LT(end, 40);
  const Told straight = train(stops);
  EXPECT_EQ(straight.iteration, end);
  EXPECT_EQ(straight.reason, StopReason::kFinished);
  ASSERT_EQ(straight.events.size(), 1u);
  EXPECT_EQ(straight.events[0].kind, "early_stop");

  const Told first = train(stops + saves + Words{"--exit_interval=5"});
  EXPECT_EQ(first.iteration, 5);
  const Told second = train(stops + saves);
  EXPECT_EQ(second.iteration, end);
  for (size_t i = 0; i < straight.weights.size(); ++i) EXPECT_TRUE(at::equal(second.weights[i], straight.weights[i]));
  const Told third = train(stops + saves);  // stays ended
  EXPECT_EQ(third.iteration, end);
  EXPECT_TRUE(third.events.empty());
  const Told raised =
      train(stops + saves + Words{"--early_stopping_patience=4", "--train_iters=" + std::to_string(end + 1)});
  EXPECT_EQ(raised.iteration, end + 1);

  std::array<Told, 2> ranks;
  ThreadWorld(2).run(Mesh({.dp = 2}),
                     [&](Groups& groups) { ranks[static_cast<size_t>(groups.rank)] = train(stops, groups); });
  for (const Told& told : ranks) EXPECT_EQ(told.iteration, end);
}

}  // namespace
}  // namespace megalith::best
