// The executor with ranks as threads: the gradients of a model cut into stages are those of the whole model, whatever
// the schedule; what is freed when; records; what happens when something fails.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "comm/group_view.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/linear.h"
#include "parallel/pipeline/executor.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kHidden = 6, kSide = 2;

int64_t tokens_of(int microbatch) { return 3 + microbatch % 3; }

at::Tensor data_of(int microbatch, int64_t columns) {
  const int64_t n = tokens_of(microbatch) * columns;
  return at::sin(at::arange(n, at::kDouble) * (1.7 + microbatch) + columns).view({-1, columns});
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
WeakStorage storage_of(const at::Tensor& tensor) {
  return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

// Two linears around a tanh, a residual stream, a smaller second stream, row numbers that choose a factor, and a tensor
// that passes through as it is. Middle stages have loss terms too.
class ToyStage : public Module, public PipelineStage {
 public:
  ToyStage(const Groups& groups, DeferredGradients* deferred, int stage, int num_stages)
      : stage_(stage),
        num_stages_(num_stages),
        up_(context_of(groups, deferred), fmt::format("stage{:02d}.up", stage), kHidden, 8, {.has_bias = true}),
        down_(context_of(groups, deferred), fmt::format("stage{:02d}.down", stage), 8, kHidden, {}) {
    register_module(up_);
    register_module(down_);
  }

  std::vector<TensorSpec> inputs(int microbatch) const override {
    if (stage_ == 0) return {};
    const int64_t t = tokens_of(microbatch);
    return {{"hidden", {t, kHidden}, at::kDouble},
            {"rows", {t}, at::kLong},
            {"side", {t, kSide}, at::kDouble},
            {"factor", {t, 1}, at::kDouble}};
  }

  StageResult forward(int microbatch, const Bundle& given) override {
    is_recording.push_back(at::GradMode::is_enabled());
    if (microbatch == fails_at) throw std::runtime_error("the stage fails");
    Bundle inputs = given;
    if (stage_ == 0) {
      inputs.set("hidden", data_of(microbatch, kHidden));
      inputs.set("rows", at::arange(tokens_of(microbatch), at::kLong));
      inputs.set("side", data_of(microbatch, kSide));
      inputs.set("factor", data_of(microbatch, 1));
    }
    const at::Tensor hidden = inputs.at("hidden"), rows = inputs.at("rows");
    const at::Tensor weight = (rows % 3 + 1).to(at::kDouble).unsqueeze(1) * inputs.at("factor");
    const at::Tensor out = hidden + down_.forward(at::tanh(up_.forward(hidden))) * weight;
    const at::Tensor side = at::tanh(inputs.at("side") + out.narrow(1, 1, kSide));
    StageResult result;
    if (stage_ % 2 == 1 || stage_ + 1 == num_stages_) {
      result.objective = (out.square().sum() * 0.1 + side.sum()) * (1 + microbatch);
      const std::lock_guard lock(mutex);
      objective_sum += result.objective.item<double>();
    }
    if (stage_ + 1 == num_stages_) return result;
    result.outputs.set("hidden", out);
    result.outputs.set("rows", rows + 1);
    result.outputs.set("side", side.t().contiguous().t());  // not contiguous
    result.outputs.set("factor", inputs.at("factor"));
    sent.push_back(storage_of(out));
    return result;
  }

  std::vector<bool> is_recording;  // of each forward
  std::vector<WeakStorage> sent;   // of the outputs "hidden"
  int fails_at = -1;
  double objective_sum = 0;
  std::mutex mutex;

 private:
  static LayerContext context_of(const Groups& groups, DeferredGradients* deferred) {
    return {.groups = &groups, .dtype = at::kDouble, .kernels = Kernels::kReference, .deferred_gradients = deferred};
  }

  int stage_, num_stages_;
  Linear up_, down_;
};

struct PipelineOutcome {
  TensorMap gradients;
  double objective = 0;
  std::vector<std::vector<ActionRecord>> records;
  int num_alive = 0;  // outputs that are still in memory when all is done
};

TensorMap weights_of(int num_stages) {
  const Groups single = Groups::single();
  TensorMap weights;
  for (int stage = 0; stage < num_stages; ++stage) {
    weights.merge(golden_weights(ToyStage(single, nullptr, stage, num_stages), at::kDouble));
  }
  return weights;
}

// The same stages in one graph on one rank.
PipelineOutcome run_whole(int num_stages, int num_microbatches) {
  const Groups single = Groups::single();
  const TensorMap weights = weights_of(num_stages);
  std::vector<std::unique_ptr<ToyStage>> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    stages.push_back(std::make_unique<ToyStage>(single, nullptr, stage, num_stages));
    load(*stages.back(), weights);
    attach_gradients(*stages.back());
  }
  PipelineOutcome outcome;
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    Bundle bundle;
    at::Tensor objective = at::zeros({}, at::kDouble);
    for (auto& stage : stages) {
      StageResult result = stage->forward(microbatch, bundle);
      if (result.objective.defined()) objective = objective + result.objective;
      bundle = result.outputs;
    }
    objective.backward();
    outcome.objective += objective.item<double>();
  }
  for (auto& stage : stages) outcome.gradients.merge(gradients_of(*stage));
  return outcome;
}

PipelineOutcome run_pipeline(const PipelineSchedule& schedule) {
  const PipelineShape& shape = schedule.shape;
  const TensorMap weights = weights_of(shape.num_stages());
  PipelineOutcome outcome;
  outcome.records.resize(static_cast<size_t>(shape.num_ranks));
  std::mutex mutex;
  ThreadWorld(shape.num_ranks).run(Mesh({.pp = shape.num_ranks}), [&](Groups& groups) {
    DeferredGradients deferred;
    const int rank = groups.pp->rank();
    std::vector<std::unique_ptr<ToyStage>> stages;
    std::vector<PipelineStage*> parts;
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      stages.push_back(std::make_unique<ToyStage>(groups, &deferred, shape.stage_of(rank, chunk), shape.num_stages()));
      load(*stages.back(), weights);
      attach_gradients(*stages.back());
      parts.push_back(stages.back().get());
    }
    PipelineExecutor executor(*groups.pp, parts, &deferred, at::kCPU);
    executor.run(schedule);
    const std::lock_guard lock(mutex);
    outcome.records[static_cast<size_t>(rank)] = executor.records();
    for (auto& stage : stages) {
      outcome.gradients.merge(gradients_of(*stage));
      outcome.objective += stage->objective_sum;
      for (const WeakStorage& output : stage->sent) outcome.num_alive += output.use_count() > 0;
    }
  });
  return outcome;
}

std::vector<Action> actions(const std::string& text) {
  std::istringstream words(text);
  std::vector<Action> list;
  for (std::string word; words >> word;) list.push_back(parse_action(word).value());
  return list;
}

void expect_whole_model(const PipelineSchedule& schedule) {
  const std::string what = fmt::format("{} {} ranks {} chunks {} microbatches", schedule.name, schedule.shape.num_ranks,
                                       schedule.shape.num_chunks, schedule.shape.num_microbatches);
  const PipelineOutcome whole = run_whole(schedule.shape.num_stages(), schedule.shape.num_microbatches);
  const PipelineOutcome piped = run_pipeline(schedule);
  EXPECT_NEAR(piped.objective, whole.objective, 1e-12 * std::abs(whole.objective)) << what;
  ASSERT_EQ(piped.gradients.size(), whole.gradients.size()) << what;
  for (const auto& [name, gradient] : whole.gradients) {
    EXPECT_LT(relative_difference(piped.gradients.at(name), gradient), 1e-12) << what << " " << name;
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-3) << name;
  }
  EXPECT_EQ(piped.num_alive, 0) << what;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<Action> done;
    std::vector<int> live;
    for (const ActionRecord& record : piped.records[rank]) {
      done.push_back(record.action);
      live.push_back(record.live);
      EXPECT_LE(record.start_s, record.end_s) << what << " " << record.action.text();
    }
    EXPECT_EQ(done, schedule.ranks[rank]) << what;
    EXPECT_EQ(live, live_activations(schedule.ranks[rank])) << what;
  }
}

PipelineSchedule gpipe_by_hand() {
  return {"gpipe by hand",
          {2, 1, 3},
          {actions("F0.0 F0.0>1 F0.1 F0.1>1 F0.2 F0.2>1 B0.0<1 B0.0 B0.1<1 B0.1 B0.2<1 B0.2"),
           actions("F0.0<0 F0.0 F0.1<0 F0.2<0 F0.1 F0.2 B0.0 B0.0>0 B0.1 B0.1>0 B0.2 B0.2>0")}};
}

TEST(PipelineExecutor, SchedulesByHandGiveTheGradientsOfTheWholeModel) {
  expect_whole_model(gpipe_by_hand());
  expect_whole_model({"1f1b by hand",
                      {2, 1, 3},
                      {actions("F0.0 F0.0>1 F0.1 F0.1>1 B0.0<1 B0.0 F0.2 F0.2>1 B0.1<1 B0.1 B0.2<1 B0.2"),
                       actions("F0.0<0 F0.0 F0.1<0 B0.0 B0.0>0 F0.1 F0.2<0 B0.1 B0.1>0 F0.2 B0.2 B0.2>0")}});
  // The first rank has stages 0 and 3, the second 1 and 2; some backward passes are split, some not.
  expect_whole_model({"V by hand",
                      {2, 2, 2, StageOrder::kVee},
                      {actions("F0.0 F0.0>1 F0.1 F0.1>1 F1.0<1 F1.0 I1.0 B1.0>1 F1.1<1 W1.0 F1.1 I1.1 B1.1>1 B0.0<1 "
                               "I0.0 W1.1 B0.1<1 B0.1 W0.0"),
                       actions("F0.0<0 F0.0 F1.0 F1.0>0 F0.1<0 F0.1 F1.1 B1.0<0 F1.1>0 I1.0 I0.0 B0.0>0 B1.1<0 W1.0 "
                               "I1.1 B0.1 B0.1>0 W0.0 W1.1")}});
  // Neighbours on one rank hand over.
  expect_whole_model(
      {"one rank", {1, 3, 2}, {actions("F0.0 F1.0 F0.1 F2.0 I2.0 B1.0 W2.0 F1.1 I0.0 F2.1 B2.1 I1.1 W0.0 B0.1 W1.1")}});
}

TEST(PipelineExecutor, EveryAlgorithmGivesTheGradientsOfTheWholeModel) {
  struct Case {
    PipelineAlgorithm algorithm;
    PipelineShape shape;
    int group = 0;
  };
  const std::vector<Case> cases = {{PipelineAlgorithm::kGpipe, {3, 1, 4}},
                                   {PipelineAlgorithm::kGpipe, {2, 2, 3}},
                                   {PipelineAlgorithm::k1f1b, {3, 1, 5}},
                                   {PipelineAlgorithm::k1f1b, {4, 1, 2}},
                                   {PipelineAlgorithm::k1f1b, {1, 1, 3}},
                                   {PipelineAlgorithm::k1f1b, {2, 2, 4}},
                                   {PipelineAlgorithm::k1f1b, {2, 3, 6}},
                                   {PipelineAlgorithm::k1f1b, {2, 2, 5}, 3},
                                   {PipelineAlgorithm::kZeroBubble, {3, 1, 5}},
                                   {PipelineAlgorithm::kZeroBubble, {2, 1, 1}},
                                   {PipelineAlgorithm::kZeroBubbleV, {2, 2, 5, StageOrder::kVee}},
                                   {PipelineAlgorithm::kZeroBubbleV, {3, 2, 4, StageOrder::kVee}}};
  for (const Case& one : cases) {
    expect_whole_model(with_communication(make_pipeline_schedule(one.algorithm, one.shape, one.group)));
  }
}

// A communicator that writes down what is sent and received over it.
class WrittenDown final : public GroupView {
 public:
  WrittenDown(std::shared_ptr<Group> communicator, const std::string& axis, std::vector<std::string>& labels)
      : GroupView(std::move(communicator), axis), labels_(labels) {}

 protected:
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    labels_.push_back(record->label);
    return GroupView::start_send_receive(transfers, record);
  }

 private:
  std::vector<std::string>& labels_;
};

TEST(PipelineExecutor, GradientsTravelOverACommunicatorOfTheirOwn) {
  const PipelineSchedule schedule = gpipe_by_hand();
  ThreadWorld(schedule.shape.num_ranks).run([&](int rank, const GroupFactory& factory) {
    std::map<std::string, std::vector<std::string>> labels;
    const Groups groups(Mesh({.pp = 2}), rank, [&](const std::vector<int>& ranks, const std::string& axis) {
      return std::make_shared<WrittenDown>(factory(ranks, axis), axis, labels[axis]);
    });
    ToyStage stage(groups, nullptr, rank, 2);
    load(stage, weights_of(2));
    attach_gradients(stage);
    PipelineExecutor executor(*groups.pp, {&stage}, nullptr, at::kCPU);
    executor.run(schedule);
    for (const auto& [axis, all] : labels) {
      const bool is_backward = axis == "pp_backward";
      EXPECT_EQ(all.size(), 3u) << axis << ": one a microbatch";
      for (const std::string& label : all) {
        EXPECT_EQ(label.find("gradient") != std::string::npos, is_backward) << axis << ": " << label;
      }
    }
    EXPECT_EQ(labels.size(), 2u);
  });
}

TEST(PipelineExecutor, SentOutputsAreFreedBeforeTheirBackward) {
  const PipelineSchedule schedule = gpipe_by_hand();
  std::vector<size_t> alive;
  ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
    ToyStage stage(groups, nullptr, groups.pp->rank(), 2);
    load(stage, weights_of(2));
    attach_gradients(stage);
    PipelineExecutor executor(*groups.pp, {&stage}, nullptr, at::kCPU);
    executor.run(schedule, [&](const Action& action) {
      // The other rank's first backward comes after all its receives; two graphs are still held here.
      if (groups.pp->rank() != 0 || !(action == Action{ActionKind::kBackward, 0, 1})) return;
      for (const WeakStorage& output : stage.sent) alive.push_back(output.use_count());
    });
    if (groups.pp->rank() == 0) {
      EXPECT_EQ(executor.records()[7].action.text(), "B0.0");
      EXPECT_EQ(executor.records()[7].live, 2);
    }
  });
  EXPECT_EQ(alive, (std::vector<size_t>{0, 0, 0}));
}

TEST(PipelineExecutor, ForwardOnlyRecordsNothing) {
  const PipelineShape shape{2, 2, 3};
  const PipelineSchedule schedule = with_communication(make_forward_schedule(shape));
  double objective = 0;
  std::mutex mutex;
  const TensorMap weights = weights_of(4);
  ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
    const int rank = groups.pp->rank();
    ToyStage first(groups, nullptr, rank, 4), second(groups, nullptr, 2 + rank, 4);
    load(first, weights);
    load(second, weights);
    PipelineExecutor executor(*groups.pp, {&first, &second}, nullptr, at::kCPU);
    executor.run(schedule);
    for (const ActionRecord& record : executor.records()) EXPECT_EQ(record.live, 0) << record.action.text();
    EXPECT_EQ(first.is_recording, std::vector<bool>(3, false));
    for (const WeakStorage& output : first.sent) EXPECT_EQ(output.use_count(), 0u);
    const std::lock_guard lock(mutex);
    objective += first.objective_sum + second.objective_sum;
  });
  const double whole = run_whole(4, 3).objective;
  EXPECT_NEAR(objective, whole, 1e-12 * std::abs(whole));
}

TEST(PipelineExecutor, RunsAgainAndTellsTheCallerBeforeEachComputation) {
  const PipelineSchedule schedule = gpipe_by_hand();
  ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
    ToyStage stage(groups, nullptr, groups.pp->rank(), 2);
    load(stage, weights_of(2));
    attach_gradients(stage);
    PipelineExecutor executor(*groups.pp, {&stage}, nullptr, at::kCPU);
    executor.run(schedule);
    const TensorMap once = gradients_of(stage);
    std::string told;
    executor.run(schedule, [&](const Action& action) { told += action.text() + " "; });
    EXPECT_EQ(told, "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2 ");
    const TensorMap twice = gradients_of(stage);
    for (const auto& [name, gradient] : once) EXPECT_LT(relative_difference(twice.at(name), 2 * gradient), 1e-14);
  });
}

// A stage that takes its time: F, I and W each so long.
class SleepingStage : public PipelineStage {
 public:
  SleepingStage(DeferredGradients& deferred, bool is_first, bool is_last)
      : deferred_(deferred), is_first_(is_first), is_last_(is_last) {}
  std::vector<TensorSpec> inputs(int) const override {
    return is_first_ ? std::vector<TensorSpec>{} : std::vector<TensorSpec>{{"x", {1}, at::kFloat}};
  }
  StageResult forward(int, const Bundle& given) override {
    rest();
    const at::Tensor x = is_first_ ? at::ones({1}).set_requires_grad(true) : given.at("x");
    const at::Tensor y = x * 2;
    y.register_hook([this](const at::Tensor& gradient) {
      rest();
      if (deferred_.is_deferring())
        deferred_.defer(rest);
      else
        rest();
      return gradient;
    });
    StageResult result;
    if (is_last_)
      result.objective = y.sum();
    else
      result.outputs.set("x", y);
    return result;
  }

 private:
  static void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  DeferredGradients& deferred_;
  bool is_first_, is_last_;
};

TEST(PipelineExecutor, RecordsSayWhatTheOrderImplies) {
  // 1F1B on two ranks: the last backward of rank 0 follows 4 + 1 forwards and 4 + 1 backwards, which take 40 ms.
  const double expected_s = 5 * 0.020 + 5 * 0.040;
  const PipelineSchedule schedule =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::k1f1b, PipelineShape{2, 1, 4}));
  double best_s = std::numeric_limits<double>::infinity();  // of many: the machine may be busy
  for (int attempt = 0; attempt < 20 && best_s > 1.1 * expected_s; ++attempt) {
    ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
      DeferredGradients deferred;
      SleepingStage stage(deferred, groups.pp->rank() == 0, groups.pp->rank() == 1);
      PipelineExecutor executor(*groups.pp, {&stage}, nullptr, at::kCPU);
      executor.run(schedule);
      double end_s = 0;
      for (const ActionRecord& record : executor.records()) {
        if (!is_communication(record.action.kind)) {
          EXPECT_GE(record.start_s, end_s) << record.action.text();
          EXPECT_GE(record.end_s - record.start_s, record.action.kind == ActionKind::kForward ? 0.020 : 0.040);
          end_s = record.end_s;
        }
      }
      if (groups.pp->rank() == 0) best_s = std::min(best_s, end_s);
    });
  }
  EXPECT_GE(best_s, expected_s);
  EXPECT_LE(best_s, 1.1 * expected_s);
}

TEST(PipelineExecutor, AFailingStageEndsTheRunOfAllRanks) {
  const PipelineSchedule schedule =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::kZeroBubble, PipelineShape{3, 1, 4}));
  for (const int fails_on : {0, 1, 2}) {
    try {
      ThreadWorld(3).run(Mesh({.pp = 3}), [&](Groups& groups) {
        DeferredGradients deferred;
        const int rank = groups.pp->rank();
        ToyStage stage(groups, &deferred, rank, 3);
        load(stage, weights_of(3));
        attach_gradients(stage);
        if (rank == fails_on) stage.fails_at = 2;
        PipelineExecutor executor(*groups.pp, {&stage}, &deferred, at::kCPU);
        try {
          executor.run(schedule);
        } catch (...) {
          EXPECT_FALSE(deferred.is_deferring());
          throw;
        }
      });
      ADD_FAILURE() << "nothing was thrown with rank " << fails_on;
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the stage fails");
    }
  }
}

// The message of the InternalError that one rank with these chunks gets.
std::string refusal(const PipelineSchedule& schedule, bool can_defer = true) {
  const Groups single = Groups::single();
  DeferredGradients deferred;
  std::vector<std::unique_ptr<ToyStage>> stages;
  std::vector<PipelineStage*> parts;
  const TensorMap weights = weights_of(schedule.shape.num_chunks);
  for (int chunk = 0; chunk < schedule.shape.num_chunks; ++chunk) {
    stages.push_back(std::make_unique<ToyStage>(single, &deferred, chunk, schedule.shape.num_chunks));
    load(*stages.back(), weights);
    attach_gradients(*stages.back());
    parts.push_back(stages.back().get());
  }
  PipelineExecutor executor(*single.pp, parts, can_defer ? &deferred : nullptr, at::kCPU);
  try {
    executor.run(schedule);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineExecutor, SchedulesThatCannotRunAreRefused) {
  EXPECT_EQ(refusal({"good", {1, 2, 1}, {actions("F0.0 F1.0 I1.0 W1.0 B0.0")}}), "");
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' has no '" << part << "'";
  };
  expect(refusal({"split", {1, 1, 1}, {actions("F0.0 I0.0 W0.0")}}, false), "no weight gradient can be deferred");
  expect(refusal({"early", {1, 2, 1}, {actions("F1.0 F0.0 B1.0 B0.0")}}), "F1.0: the stage before has not run");
  expect(refusal({"order", {1, 2, 1}, {actions("F0.0 F1.0 B0.0 B1.0")}}), "B0.0: the next stage has not run backward");
  expect(refusal({"twice", {1, 1, 1}, {actions("F0.0 B0.0 B0.0")}}), "B0.0: its forward did not run");
  expect(refusal({"left", {1, 2, 1}, {actions("F0.0")}}), "bundles that nobody reads");
  expect(refusal({"left", {1, 1, 1}, {actions("F0.0 I0.0")}}), "graphs");
  expect(refusal({"ranks", {2, 1, 1}, {{}, {}}}), "a schedule of 2 ranks on a pipeline of 1");
}

}  // namespace
}  // namespace megalith
