// The training step: what is the same however a global batch is cut.
#include "train/step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

// Six samples in microbatches of `micro`, on the ranks of groups.dp.
Outcome run_step(const Groups& groups, int64_t micro) {
  const ModelConfig config = config_with_dropout();
  const auto model = test::build_model(config, test::tiny_context(groups));
  test::load(*model, test::golden_weights(*model, at::kDouble));
  GradBuffer buffer(model->parameters(), groups, {});
  Optimizer optimizer(buffer, groups, {}, Kernels::kReference);
  PipelinedModel pipeline(*model, groups, at::kCPU);
  TrainStep step(pipeline, buffer, optimizer, groups, at::kCPU);
  const test::NaiveInput whole = test::tiny_batch(config, 6, 7, false);
  std::vector<Batch> batches;
  const int64_t chunk = micro * groups.dp->size();
  for (int64_t begin = 0; begin < 6; begin += chunk) {
    const int64_t first = begin + groups.dp->rank() * micro;
    batches.push_back(rows(whole, first, first + micro));
  }
  const StepResult result = step.compute_gradients(batches);
  Outcome run{result.losses.at(0).value, 0, test::gradients_of(*model)};
  for (auto& [name, gradient] : run.gradients) gradient = gradient.clone();
  run.grad_norm = optimizer.step(0, 0).grad_norm;
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

TEST(TrainStep, TheLossScaleMultipliesGradientsAndNotTheReportedLoss) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  const auto model = test::build_model(config, test::tiny_context(groups));
  test::load(*model, test::golden_weights(*model, at::kDouble));
  GradBuffer buffer(model->parameters(), groups, {});
  Optimizer optimizer(buffer, groups, {}, Kernels::kReference);
  PipelinedModel pipeline(*model, groups, at::kCPU);
  TrainStep step(pipeline, buffer, optimizer, groups, at::kCPU);
  const std::vector<Batch> batches = {rows(test::tiny_batch(config, 6, 7, false), 0, 6)};
  const double loss = step.compute_gradients(batches).losses.at(0).value;
  TensorMap plain = test::gradients_of(*model);
  for (auto& [name, gradient] : plain) gradient = gradient.clone();
  EXPECT_EQ(step.compute_gradients(batches, 4096).losses.at(0).value, loss);
  for (const auto& [name, gradient] : test::gradients_of(*model)) {
    EXPECT_LE(test::relative_difference(gradient, plain.at(name) * 4096), 1e-12) << name;
  }
}

TEST(TrainStep, ABatchWithoutAValidTokenHasNoLossAndNoGradient) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  const auto model = test::build_model(config, test::tiny_context(groups));
  test::load(*model, test::golden_weights(*model, at::kDouble));
  GradBuffer buffer(model->parameters(), groups, {});
  Optimizer optimizer(buffer, groups, {}, Kernels::kReference);
  PipelinedModel pipeline(*model, groups, at::kCPU);
  TrainStep step(pipeline, buffer, optimizer, groups, at::kCPU);
  const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 0, 2);
  batch.at(field::kLossWeights).zero_();
  const StepResult result = step.compute_gradients({batch});
  EXPECT_EQ(result.losses.at(0).value, 0);
  EXPECT_TRUE(result.is_loss_finite);
  EXPECT_EQ(optimizer.step(0, 0).grad_norm, 0);
}

TEST(TrainStep, EvaluationGivesTheLossOfTrainingWithoutDropout) {
  const Groups groups = Groups::single();
  const ModelConfig config = test::tiny_config();
  const auto model = test::build_model(config, test::tiny_context(groups));
  test::load(*model, test::golden_weights(*model, at::kDouble));
  GradBuffer buffer(model->parameters(), groups, {});
  Optimizer optimizer(buffer, groups, {}, Kernels::kReference);
  PipelinedModel pipeline(*model, groups, at::kCPU);
  TrainStep step(pipeline, buffer, optimizer, groups, at::kCPU);
  const Batch batch = rows(test::tiny_batch(config, 6, 7, false), 0, 6);
  const double training = step.compute_gradients({batch}).losses.at(0).value;
  std::vector<at::Tensor> losses;
  const EvaluationSums sums = evaluate_batches(pipeline, {batch}, groups, at::kCPU, &losses);
  EXPECT_NEAR(sums.loss(), training, 1e-12 * training);
  EXPECT_EQ(losses.at(0).sizes(), batch.at(field::kTokens).sizes());
}

}  // namespace
}  // namespace megalith
