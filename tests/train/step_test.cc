// The training step: what is the same however a global batch is cut.
#include "train/step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "parallel/grad_buffer.h"
#include "support/tensor_near.h"
#include "train/tiny_rows.h"

namespace megalith {
namespace {

using test::TensorMap;

// Rows [begin, end) of a batch of six samples.
Batch rows(const test::NaiveInput& whole, int64_t begin, int64_t end) {
  return test::tiny_rows(whole, begin, end - begin, begin + 40);
}

ModelConfig config_with_dropout() {
  ModelConfig config = test::tiny_config();
  config.hidden_dropout = config.attention_dropout = 0.2;
  return config;
}

struct Outcome {
  double loss = 0, grad_norm = 0;
  TensorMap gradients;
};

// A whole model on each rank, and all that trains it.
struct Training {
  Training(const ModelConfig& config, const Groups& groups)
      : model(filled_model(config, groups)),
        buffer(model->parameters(), groups, {}),
        optimizer(buffer, groups, {}, Kernels::kReference),
        pipeline(*model, groups, at::kCPU),
        step(pipeline, test::tiny_task(), buffer, optimizer, groups, at::kCPU) {}

  static std::unique_ptr<Model> filled_model(const ModelConfig& config, const Groups& groups) {
    auto filled = test::build_model(config, test::tiny_context(groups));
    test::load(*filled, test::golden_weights(*filled, at::kDouble));
    return filled;
  }

  std::unique_ptr<Model> model;
  GradBuffer buffer;
  Optimizer optimizer;
  PipelinedModel pipeline;
  TrainStep step;
};

// Six samples in microbatches of `micro`, on the ranks of groups.dp.
Outcome run_step(const Groups& groups, int64_t micro) {
  const ModelConfig config = config_with_dropout();
  Training training(config, groups);
  const test::NaiveInput whole = test::tiny_batch(config, 6, 7, false);
  std::vector<Batch> batches;
  const int64_t chunk = micro * groups.dp->size();
  for (int64_t begin = 0; begin < 6; begin += chunk) {
    const int64_t first = begin + groups.dp->rank() * micro;
    batches.push_back(rows(whole, first, first + micro));
  }
  const StepResult result = training.step.compute_gradients(batches);
  Outcome run{result.losses.at(0).value, 0, test::gradients_of(*training.model)};
  for (auto& [name, gradient] : run.gradients) gradient = gradient.clone();
  run.grad_norm = training.optimizer.step(0, 0).grad_norm;
  return run;
}

// Sums of float64 in another order: 1e-12 leaves room for a few hundred roundings.
void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_NEAR(actual.loss, expected.loss, 1e-12 * expected.loss) << what;
  EXPECT_NEAR(actual.grad_norm, expected.grad_norm, 1e-10 * expected.grad_norm) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LE(test::relative_difference(actual.gradients.at(name), gradient), 1e-10) << what << " " << name;
  }
}

TEST(TrainStep, AccumulationEqualsOneBigBatchWithUnevenTokenCountsAndDropout) {
  const Groups groups = Groups::single();
  const Outcome whole = run_step(groups, 6);
  for (const int64_t micro : {1, 2, 3})
    expect_same(run_step(groups, micro), whole, fmt::format("micro batch {}", micro));
}

TEST(TrainStep, DataParallelRanksEqualOne) {
  const Outcome whole = run_step(Groups::single(), 6);
  for (const int ranks : {2, 3}) {
    ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
      expect_same(run_step(groups, 1), whole, fmt::format("rank {} of {}", groups.rank, ranks));
    });
  }
}

// Exchanges of the ranks in a step, apart from gradients: the weights of the losses, which must be known before the
// forward pass, and everything else at once.
TEST(TrainStep, ExchangesOnceForAllThatCanWait) {
  for (const bool is_bad : {false, true}) {
    ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
      const ModelConfig config = test::tiny_config();
      Training training(config, groups);
      const test::NaiveInput whole = test::tiny_batch(config, 8, 7, false);
      std::vector<Batch> batches;
      for (int64_t m = 0; m < 2; ++m) {
        const int64_t first = 4 * groups.dp->rank() + 2 * m;
        batches.push_back(rows(whole, first, first + 2));
      }
      std::vector<std::string> exchanged;
      for (const Groups::Pointer& group : groups.all()) {
        if (group->size() == 1) continue;
        group->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
          const bool is_of_gradients = record.label.starts_with("grad bucket");
          if (phase == TracePhase::kStart && !is_of_gradients) exchanged.push_back(record.label);
        });
      }
      if (is_bad && groups.rank == 1) batches[0].at(field::kLossWeights).fill_(std::nanf(""));
      const StepResult result = training.step.run(batches, 1e-3, 0, 1.0, [&] { return groups.rank; }).read();
      for (const Groups::Pointer& group : groups.all()) group->set_trace_hook({});
      // Whose gradient was bad is among what all learn at once.
      EXPECT_EQ(exchanged, (std::vector<std::string>{"valid tokens", "statistics of the step"}));
      EXPECT_EQ(result.optimizer.was_skipped(), is_bad);
      // The weight that is NaN divides the loss of both; rank 0 counts what both have.
      EXPECT_EQ(result.optimizer.first_bad_rank, is_bad ? 0 : -1);
      EXPECT_EQ(result.optimizer.bad_parameter.empty(), !(is_bad && groups.rank == 0));
      EXPECT_EQ(result.vote, 1);
      EXPECT_EQ(std::isfinite(result.optimizer.grad_norm), !is_bad);
    });
  }
}

// As an accelerator's host does: issues the second step before it reads the first.
TEST(TrainStep, AStepMayBeReadAfterTheNextIsIssued) {
  const Groups groups = Groups::single();
  ModelConfig config = test::tiny_config();
  for (const bool is_first_bad : {false, true}) {
    Training at_once(config, groups), late(config, groups);
    const auto batches = [&](int step) {
      const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 3 * step, 3 * step + 3);
      if (is_first_bad && step == 0) batch.at(field::kLossWeights).fill_(std::nanf(""));
      return std::vector<Batch>{batch};
    };
    std::vector<StepResult> expected, actual;
    for (int step = 0; step < 2; ++step) expected.push_back(at_once.step.run(batches(step), 1e-3, 0.1).read());
    const PendingStep first = late.step.run(batches(0), 1e-3, 0.1), second = late.step.run(batches(1), 1e-3, 0.1);
    actual = {first.read(), second.read()};
    for (size_t i = 0; i < 2; ++i) {
      const bool is_bad = is_first_bad && i == 0;
      EXPECT_EQ(actual[i].is_loss_finite, !is_bad);
      EXPECT_EQ(actual[i].optimizer.was_skipped(), is_bad);
      EXPECT_EQ(actual[i].optimizer.first_bad_rank, is_bad ? 0 : -1);
      // The gradients that it would be looked for in are those of the second step by then.
      EXPECT_EQ(actual[i].optimizer.bad_parameter, "");
      EXPECT_EQ(expected[i].optimizer.bad_parameter.empty(), !is_bad);
      if (is_bad) continue;
      EXPECT_EQ(actual[i].losses.at(0).value, expected[i].losses.at(0).value);
      EXPECT_EQ(actual[i].optimizer.grad_norm, expected[i].optimizer.grad_norm);
    }
    EXPECT_EQ(late.optimizer.num_steps(), is_first_bad ? 1 : 2);
    for (size_t i = 0; i < late.model->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(late.model->parameters()[i]->data(), at_once.model->parameters()[i]->data()));
    }
  }
}

// The meta device has no values, so that whatever the host reads of it fails.
TEST(TrainStep, TheHostReadsNothingOfTheDeviceWithinAStep) {
  const Groups groups = Groups::single();
  for (const bool has_experts : {false, true}) {
    ModelConfig config = test::tiny_config();
    if (has_experts) {
      config.num_experts = 4;
      config.moe_router_topk = 2;
      config.moe_ffn_hidden_size = 12;
      config.moe_router_score_function = RouterScore::kSigmoid;
      config.moe_router_enable_expert_bias = true;
    }
    LayerContext context = test::tiny_context(groups, at::kFloat, Kernels::kFused);
    context.device = at::kMeta;
    const auto model = test::build_model(config, context);
    GradBuffer buffer(model->parameters(), groups, {});
    Optimizer optimizer(buffer, groups, {}, Kernels::kFused);
    PipelinedModel pipeline(*model, groups, at::kMeta);
    TrainStep step(pipeline, test::tiny_task(), buffer, optimizer, groups, at::kMeta);
    const std::vector<Batch> batches = {rows(test::tiny_batch(config, 6, 7, false), 0, 6)};
    std::optional<PendingStep> pending;
    for (int i = 0; i < 2; ++i) {
      EXPECT_NO_THROW(pending = step.run(batches, 1e-3, 0.1, 1.0, [] { return 1; }));
    }
    EXPECT_TRUE(optimizer.is_made().is_meta());
    EXPECT_ANY_THROW(optimizer.num_steps());
  }
}

// A later stage asks for the shapes of its inputs before they come, and once more when they are handed on.
TEST(TrainStep, EveryChunkMakesTheInputOfAMicrobatchOnce) {
  ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
    const ModelConfig config = test::tiny_config();
    const bool is_first = groups.pp->is_first();
    const PipelinePlan plan = make_pipeline_plan({}, 2, model_units(config));
    ModelPart part = ModelPart::whole(plan.units);
    part.range = plan.stages[is_first ? 0 : 1];
    const auto model = family_for(config).build(config, test::tiny_context(groups), part);
    for (Parameter* parameter : model->parameters()) parameter->data().fill_(0.1);
    GradBuffer buffer(model->parameters(), groups, {});
    PipelinedModel pipeline({{model.get()}, plan, nullptr}, groups, at::kCPU);
    const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 0, 2);
    std::map<int, int> made;
    const auto make_input = [&](int microbatch, std::span<const Unit> units) {
      ++made[microbatch];
      return test::tiny_task().make_input(batch, at::kCPU, units);
    };
    buffer.begin_step();
    pipeline.train(
        4, make_input, [&](bool is_last) { buffer.begin_microbatch(is_last); }, [](const ModelOutput&) {});
    buffer.finish_step();
    EXPECT_EQ(made, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  });
}

TEST(TrainStep, TheLossScaleMultipliesGradientsAndNotTheReportedLoss) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  Training training(config, groups);
  const std::vector<Batch> batches = {rows(test::tiny_batch(config, 6, 7, false), 0, 6)};
  const double loss = training.step.compute_gradients(batches).losses.at(0).value;
  TensorMap plain = test::gradients_of(*training.model);
  for (auto& [name, gradient] : plain) gradient = gradient.clone();
  EXPECT_EQ(training.step.compute_gradients(batches, 4096).losses.at(0).value, loss);
  for (const auto& [name, gradient] : test::gradients_of(*training.model)) {
    EXPECT_LE(test::relative_difference(gradient, plain.at(name) * 4096), 1e-12) << name;
  }
}

TEST(TrainStep, ABatchWithoutAValidTokenHasNoLossAndNoGradient) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  Training training(config, groups);
  const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 0, 2);
  batch.at(field::kLossWeights).zero_();
  const StepResult result = training.step.compute_gradients({batch});
  EXPECT_EQ(result.losses.at(0).value, 0);
  EXPECT_TRUE(result.is_loss_finite);
  EXPECT_EQ(training.optimizer.step(0, 0).grad_norm, 0);
}

TEST(TrainStep, EvaluationGivesTheLossOfTrainingWithoutDropout) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  Training training(config, groups);
  const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 0, 6);
  const double loss = training.step.compute_gradients({batch}).losses.at(0).value;
  std::vector<at::Tensor> losses;
  const EvaluationSums sums =
      evaluate_batches(training.pipeline, test::tiny_task(), {batch}, groups, at::kCPU, &losses);
  EXPECT_NEAR(sums.loss(), loss, 1e-12 * loss);
  EXPECT_EQ(losses.at(0).sizes(), batch.at(field::kTokens).sizes());
}

}  // namespace
}  // namespace megalith
