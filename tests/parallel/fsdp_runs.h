// Training runs of a tiny model under FSDP and on one rank, and what the ranks know after them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <mutex>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "optim/optimizer.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/recompute.h"

namespace megalith::fsdp_runs {

using namespace test;

constexpr int64_t kSamples = 36, kLength = 4;  // of a global batch: even shares for 1 to 4 ranks, in 1 and in 3 parts

struct Setting {
  ModelConfig config;
  at::ScalarType dtype = at::kDouble;
  Kernels kernels = Kernels::kReference;
  int64_t num_microbatches = 1, num_steps = 5;
  bool is_sequence_parallel = false;
  bool evaluates = false;   // after every step
  bool recomputes = false;  // all layers
  std::function<bool(const std::string& name)> is_frozen = [](const std::string&) { return false; };
  FsdpOptions fsdp;
};

inline Setting setting() {
  Setting setting{.config = tiny_config()};
  setting.config.num_layers = 3;
  return setting;
}

// The knowledge of a rank, or of all together, after a run. Canonical tensors, NaN where no rank holds an element.
struct Outcome {
  std::vector<double> losses, grad_norms;
  TensorMap gradients;  // of the first step
  TensorMap values;     // after the last
};

inline NaiveInput part_of_batch(const ModelConfig& config, int64_t step, int64_t begin, int64_t end) {
  NaiveInput part = tiny_batch(config, kSamples, kLength, false);
  part.tokens = (part.tokens + step).remainder(*config.vocab_size);
  part.row_ids = part.row_ids + 1000 * step;
  for (at::Tensor NaiveInput::*member : {&NaiveInput::tokens, &NaiveInput::labels, &NaiveInput::loss_weights,
                                         &NaiveInput::position_ids, &NaiveInput::row_ids}) {
    part.*member = (part.*member).narrow(0, begin, end - begin).contiguous();
  }
  return part;
}

// Runs of parameters as canonical tensors.
inline void collect_parts(const std::vector<OwnedPart>& parts, bool are_gradients, TensorMap& into) {
  for (const OwnedPart& part : parts) {
    const at::Tensor& held = are_gradients ? part.grad : part.model;
    const Placement& placement = part.parameter->placement();
    const at::Tensor local = at::full({placement.num_local_elements()}, std::nan(""), held.options());
    const FlatRange range = part.range.value_or(FlatRange{0, local.numel()});
    EXPECT_LT(range.begin, range.end) << part.parameter->name();
    local.narrow(0, range.begin, range.size()).copy_(held.reshape({-1}));
    for (const Piece& piece : placement.pieces) {
      at::Tensor& whole = into[piece.name];
      if (!whole.defined()) whole = at::full(piece.shape, std::nan(""), held.options());
      const at::Tensor from = box_view(local.view(placement.local_shape), piece.local);
      const at::Tensor to = box_view(whole, piece.canonical);
      to.copy_(at::where(from.isnan(), to, from));
    }
  }
}

// Adds what another rank knows; what both know must be equal to the bit.
inline void merge(TensorMap& into, const TensorMap& other) {
  for (const auto& [name, tensor] : other) {
    at::Tensor& mine = into[name];
    if (!mine.defined()) mine = at::full_like(tensor, std::nan(""));
    const at::Tensor both = mine.isfinite().logical_and(tensor.isfinite());
    EXPECT_TRUE(at::equal(mine.masked_select(both), tensor.masked_select(both))) << name << " differs between replicas";
    mine = at::where(mine.isnan(), tensor, mine);
  }
}

inline double evaluate(Model& model, const Setting& s) {
  const at::NoGradGuard no_grad;
  NaiveInput batch = part_of_batch(s.config, 100, 0, 2);
  batch.is_training = false;
  return model.forward(model_input(batch), {}, HeadOutput::kTokenLosses).token_losses.sum().item<double>();
}

inline std::unique_ptr<Model> make_model(const Groups& groups, const Setting& s) {
  LayerContext context = tiny_context(groups, s.dtype, s.kernels);
  context.is_sequence_parallel = s.is_sequence_parallel;
  auto model = build_model(s.config, context);
  load(*model, golden_weights(*build_model(s.config, tiny_context(Groups::single())), s.dtype));
  model->for_each_parameter([&](Parameter& param) {
    if (s.is_frozen(param.name())) param.set_trainable(false);
  });
  return model;
}

// Forward and backward of this rank's share of the global batch; the sum of its losses.
inline double run_microbatches(Model& model, DataParallel& data, const Groups& groups, const Setting& s, int64_t step) {
  const double weight = part_of_batch(s.config, step, 0, kSamples).loss_weights.sum().item<double>();
  const int64_t rows = div_exact(kSamples, s.num_microbatches * groups.dp->size());
  double loss = 0;
  for (int64_t m = 0; m < s.num_microbatches; ++m) {
    data.begin_microbatch(m + 1 == s.num_microbatches);
    const int64_t first = (m * groups.dp->size() + groups.dp->rank()) * rows;
    const NaiveInput batch = part_of_batch(s.config, step, first, first + rows);
    const ModelOutput output = model.forward(model_input(batch, 1 / weight), {}, HeadOutput::kLoss);
    output.terms.at(0).objective.backward();
    loss += output.terms.at(0).sum.item<double>() / weight;
  }
  return loss;
}

inline Outcome train(const Groups& groups, const Setting& s, bool with_fsdp) {
  const auto model = make_model(groups, s);
  std::unique_ptr<DataParallel> data;
  const Fsdp* fsdp = nullptr;
  if (with_fsdp) {
    auto made = std::make_unique<Fsdp>(model->parameters(), model->blocks(), groups, s.fsdp);
    fsdp = made.get();
    data = std::move(made);
  } else {
    data = std::make_unique<GradBuffer>(model->parameters(), groups, GradBufferOptions{});
  }
  RecomputePlan plan;
  for (int64_t layer = 0; s.recomputes && layer < s.config.num_layers; ++layer) plan.layers.insert(layer);
  RecomputeRunner runner(plan, data->runner(), nullptr);
  model->set_runner(&runner);
  // eps well above the rounding of gradients, or elements whose gradient is about zero would go either way.
  OptimizerOptions adam;
  adam.adam_eps = 1e-4;
  Optimizer optimizer(*data, groups, adam, s.kernels);
  Outcome run;
  for (int64_t step = 0; step < s.num_steps; ++step) {
    data->begin_step();
    const double loss = run_microbatches(*model, *data, groups, s, step);
    data->finish_step();
    run.losses.push_back(groups.dp_cp->reduced(loss, ReduceOp::kSum, "loss"));
    if (step == 0) {
      collect_parts(data->parts(), true, run.gradients);
      for (auto& [name, gradient] : run.gradients) gradient = gradient.clone();
    }
    run.grad_norms.push_back(optimizer.step(1e-2, 0.1).grad_norm);
    if (s.evaluates) run.losses.push_back(evaluate(*model, s));
  }
  if (fsdp != nullptr)
    collect_parts(fsdp->model_parts(), false, run.values);
  else
    run.values = values_of(*model);
  return run;
}

// The ranks' outcomes as one.
inline Outcome train_on(const Mesh& mesh, const Setting& s) {
  Outcome all;
  std::mutex mutex;
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    const Outcome mine = train(groups, s, true);
    const std::lock_guard lock(mutex);
    if (all.losses.empty()) all.losses = mine.losses, all.grad_norms = mine.grad_norms;
    EXPECT_EQ(mine.losses, all.losses) << groups.rank;
    EXPECT_EQ(mine.grad_norms, all.grad_norms) << groups.rank;
    merge(all.gradients, mine.gradients);
    merge(all.values, mine.values);
  });
  return all;
}

inline void expect_near(const Outcome& actual, const Outcome& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size()) << what;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * std::abs(expected.losses[i])) << what << " " << i;
  }
  for (size_t i = 0; i < expected.grad_norms.size(); ++i) {
    EXPECT_NEAR(actual.grad_norms[i], expected.grad_norms[i], tolerance * expected.grad_norms[i]) << what << " " << i;
  }
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LE(relative_difference(actual.gradients.at(name), gradient), tolerance) << what << ": gradient of " << name;
  }
  ASSERT_EQ(actual.values.size(), expected.values.size()) << what;
  for (const auto& [name, value] : expected.values) {
    EXPECT_LE(relative_difference(actual.values.at(name), value), tolerance) << what << ": " << name;
  }
}

inline void expect_equal(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_EQ(actual.grad_norms, expected.grad_norms) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_TRUE(at::equal(actual.gradients.at(name), gradient)) << what << ": gradient of " << name;
  }
  for (const auto& [name, value] : expected.values) {
    EXPECT_TRUE(at::equal(actual.values.at(name), value)) << what << ": " << name;
  }
}

// Sums of float64 in another order over five steps: 1e-12 is usual.
constexpr double kExact = 1e-9;

struct Layout {
  std::string name;
  Mesh mesh;
};
inline std::vector<Layout> data_layouts() {
  return {{"dp 2", Mesh({.dp = 2})},
          {"dp 3", Mesh({.dp = 3})},
          {"dp 4", Mesh({.dp = 4})},
          {"dp 2x2", Mesh({.dp = 4, .dp_replicate = 2})}};
}

}  // namespace megalith::fsdp_runs
