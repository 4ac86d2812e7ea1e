// Parameters of which several stages of a pipeline, on any ranks, hold copies: one for gradients, norm, updates and
// checkpoints, as on one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/replica_check.h"
#include "checkpoint/replica_share.h"
#include "comm/thread_world.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel_options.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

struct HeldParameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int> stages;
};

// As T5's table: the encoder's first stage, the decoder's in the middle, the head's; another that overlaps with it; and
// what only one stage has.
const std::vector<HeldParameter>& held_parameters() {
  static const std::vector<HeldParameter> all = {{"table", {6, 5}, {0, 2, 3}}, {"bridge", {7}, {1, 2}},
                                                 {"own.0", {3, 3}, {0}},       {"own.1", {3, 3}, {1}},
                                                 {"own.2", {3, 3}, {2}},       {"own.3", {3, 3}, {3}}};
  return all;
}

at::Tensor contribution(const HeldParameter& held, int stage, int dp, int step) {
  const at::Tensor i = at::arange(c10::multiply_integers(held.shape), at::kDouble);
  const auto seed = static_cast<double>(held.name.size() + 10 * static_cast<size_t>(stage + 4 * dp + 8 * step));
  return at::sin(0.37 * i * i + seed).view(held.shape);
}

// The parameters of one stage, or with all of them those of one rank.
struct HeldTraining {
  HeldTraining(const Groups& groups, const std::set<int>& stages, bool is_sharded) : stages(stages) {
    std::vector<Parameter*> pointers;
    for (const HeldParameter& one : held_parameters()) {
      const bool is_here = std::ranges::any_of(one.stages, [&](int stage) { return stages.contains(stage); });
      if (!is_here) continue;
      Placement placement = Placement::whole(one.name, one.shape);
      placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
      if (one.stages.size() > 1 && groups.pp->size() > 1) {
        placement.replica_axes.insert(Axis::kPp);
        placement.partial_axes.insert(Axis::kPp);
        placement.pipeline_ranks = one.stages;
      }
      held.push_back(&one);
      parameters.push_back(std::make_unique<Parameter>(
          one.name, placement, ParameterOptions{.dtype = at::kDouble, .init = Init::normal(0.5)}));
      pointers.push_back(parameters.back().get());
    }
    data = make_data_parallel(pointers, groups, {.use_distributed_optimizer = is_sharded});
    data->initialise(3);
    optimizer = std::make_unique<Optimizer>(*data, groups, OptimizerOptions{}, Kernels::kReference);
  }

  // The contributions of these ranks of dp.
  double step(int number, const std::vector<int>& dp) {
    data->begin_step();
    data->begin_microbatch(/*is_last=*/true);
    for (size_t i = 0; i < held.size(); ++i) {
      at::Tensor gradient = at::zeros(held[i]->shape, at::kDouble);
      for (const int stage : held[i]->stages) {
        for (const int one : dp) {
          if (stages.contains(stage)) gradient = gradient + contribution(*held[i], stage, one, number);
        }
      }
      parameters[i]->expect_contribution();
      parameters[i]->add_grad(gradient);
    }
    data->finish_step();
    const double norm = optimizer->step(/*lr=*/0.05, /*weight_decay=*/0.1).grad_norm;
    data->wait_for_parameters();
    return norm;
  }

  std::set<int> stages;
  std::vector<const HeldParameter*> held;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<DataParallel> data;
  std::unique_ptr<Optimizer> optimizer;
};

constexpr int kHeldSteps = 3;

TEST(SharedParameters, OfStagesAnywhereTrainAsOnOneRank) {
  const Groups single = Groups::single();
  HeldTraining expected(single, {0, 1, 2, 3}, false);
  std::vector<double> norms;
  for (int step = 0; step < kHeldSteps; ++step) norms.push_back(expected.step(step, {0, 1}));
  std::map<std::string, at::Tensor> weights;
  for (const auto& one : expected.parameters) weights[one->name()] = one->data();

  for (const bool is_sharded : {false, true}) {
    ThreadWorld(8).run(Mesh({.dp = 2, .pp = 4}), [&](Groups& groups) {
      HeldTraining run(groups, {groups.pp->rank()}, is_sharded);
      // Sums of float64 in another order, a few steps.
      for (size_t step = 0; step < kHeldSteps; ++step) {
        const double norm = run.step(static_cast<int>(step), {groups.dp->rank()});
        EXPECT_NEAR(norm, norms[step], 1e-12 * norms[step]) << "a copy counts once";
      }
      for (const auto& one : run.parameters) {
        EXPECT_TENSOR_NEAR(one->data(), weights.at(one->name()), {.abs = 1e-11, .what = one->name()});
      }
    });
  }
}

TEST(SharedParameters, AreWrittenOnceAndComparedAmongTheirHolders) {
  for (const bool is_sharded : {false, true}) {
    std::mutex mutex;
    std::map<std::string, int64_t> written;
    ThreadWorld(8).run(Mesh({.dp = 2, .pp = 4}), [&](Groups& groups) {
      HeldTraining run(groups, {groups.pp->rank()}, is_sharded);
      run.step(0, {groups.dp->rank()});
      ReplicaShare share(groups);
      for (const OwnedPart& part : run.data->parts()) {
        const Placement& placement = part.parameter->placement();
        if (!share.is_mine(part.replica_axes, placement.pipeline_ranks, static_cast<int64_t>(part.model.nbytes()))) {
          continue;
        }
        const std::lock_guard lock(mutex);
        written[part.parameter->name()] += part.model.numel();
      }
      const std::vector<CheckpointTensor> tensors = model_tensors(*run.data);
      EXPECT_FALSE(find_replica_difference(tensors, groups).has_value());
      for (const OwnedPart& part : run.data->model_parts()) {
        if (part.parameter->name() == "table" && groups.pp->rank() == 2) part.model.add_(1e-9);
      }
      const auto difference = find_replica_difference(tensors, groups);
      EXPECT_TRUE(difference.has_value());
      if (!difference) return;
      EXPECT_EQ(difference->tensor, "table");
      EXPECT_EQ(difference->axis, Axis::kPp);
    });
    for (const HeldParameter& one : held_parameters()) {
      EXPECT_EQ(written[one.name], c10::multiply_integers(one.shape)) << one.name;
    }
  }
}

}  // namespace
}  // namespace megalith
