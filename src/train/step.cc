#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "device/stream.h"
#include "train/inputs_ahead.h"
#include "train/profile.h"

namespace megalith {
namespace {

// loss_scale over each loss's weight in the global batch: 0-d fp64, counted on the host and, with several ranks, summed
// on the device without being read.
std::vector<at::Tensor> scales_of_losses(const Task& task, const std::vector<Batch>& batches, const Groups& groups,
                                         double loss_scale) {
  std::vector<double> weights(task.loss_names().size());
  for (const Batch& batch : batches) {
    const std::vector<double> here = task.count_weights(batch);
    MEGALITH_CHECK(here.size() == weights.size(), "{} weights of {} losses", here.size(), weights.size());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += here[i];
  }
  const at::Tensor all = at::empty({std::ssize(weights)}, at::TensorOptions(groups.dp_cp->device()).dtype(at::kDouble));
  for (size_t i = 0; i < weights.size(); ++i) all[static_cast<int64_t>(i)].fill_(weights[i]);
  groups.dp_cp->all_reduce(all, ReduceOp::kSum, "valid tokens").wait();
  // A batch without valid tokens has neither loss nor gradient; dividing by one keeps it finite.
  return (at::full_like(all, loss_scale) / all.clamp_min(1.0)).unbind();
}

EvaluationSums sums_of(const std::vector<std::string>& names, const at::Tensor& pairs) {
  EvaluationSums sums;
  const at::Tensor host = pairs.to(at::kCPU);
  for (size_t i = 0; i < names.size(); ++i) {
    const double* pair = host.const_data_ptr<double>() + 2 * i;
    sums.losses.push_back({.name = names[i], .sum = pair[0], .weight = pair[1]});
  }
  return sums;
}

}  // namespace

TrainStep::TrainStep(PipelinedModel& model, const Task& task, DataParallel& data, Optimizer& optimizer,
                     const Groups& groups, at::Device device)
    : model_(model), task_(task), data_(data), optimizer_(optimizer), groups_(groups), device_(device) {
  if (!device.is_cpu() && !device.is_meta()) copies_ = side_stream(device);
}

// All microbatches' gradients, and this rank's statistics.
void TrainStep::accumulate(const std::vector<Batch>& whole_batches, double loss_scale) {
  MEGALITH_CHECK(!whole_batches.empty(), "a step without microbatches");
  const std::vector<Batch> batches = parts_of(whole_batches, *groups_.cp);
  std::vector<std::string> names = task_.loss_names();
  const std::vector<at::Tensor> scales = scales_of_losses(task_, batches, groups_, loss_scale);
  std::vector<TermScale> terms;
  for (size_t i = 0; i < names.size(); ++i) terms.push_back({.name = names[i], .per_weight = scales[i]});
  const double per_microbatch = loss_scale / static_cast<double>(std::ssize(batches) * groups_.dp->size());

  for (std::string& measured : task_.measured_names()) names.push_back(std::move(measured));
  for (std::string& added : model_.added_losses()) names.push_back(std::move(added));
  statistics_ = std::make_shared<StepStatistics>(std::move(names), model_.observations(), groups_, device_);
  InputsAhead inputs(
      narrow<int>(std::ssize(batches)),
      [&](int microbatch, std::span<const Unit> units) {
        return task_.make_input(batches[static_cast<size_t>(microbatch)], device_, units);
      },
      copies_);
  const auto make_input = [&](int microbatch, std::span<const Unit> units) {
    ModelInput input = inputs.take(microbatch, units);
    input.terms = terms;
    input.per_microbatch = per_microbatch;
    return input;
  };
  data_.begin_step();
  // Graphs neither wait for parameters nor start reductions: both are done around the microbatches.
  const bool has_graphs = model_.uses_graphs();
  if (has_graphs) data_.wait_for_parameters();
  model_.train(
      narrow<int>(std::ssize(batches)), make_input,
      [&](bool is_last) { data_.begin_microbatch(is_last && !has_graphs); },
      [&](const ModelOutput& output) { statistics_->add(output); });
  const ProfileRange range("finish gradients");
  data_.finish_step();
}

StepResult TrainStep::result_of(StepStatistics& statistics) {
  statistics.read();
  StepResult result;
  for (const LossSum& loss : statistics.losses()) {
    result.losses.push_back({loss.name, loss.mean(), loss.weight});
    if (!std::isfinite(loss.mean())) result.is_loss_finite = false;
  }
  result.observations = statistics.observed_values();
  result.vote = statistics.agreed_vote();
  return result;
}

StepResult TrainStep::compute_gradients(const std::vector<Batch>& batches, double loss_scale) {
  accumulate(batches, loss_scale);
  statistics_->exchange();
  return result_of(*statistics_);
}

void TrainStep::after_update() { model_.after_step(statistics_->observed(), optimizer_.is_made()); }

PendingStep TrainStep::run(const std::vector<Batch>& batches, const LearningRates& rates, double weight_decay,
                           double loss_scale, const std::function<int()>& vote, const StepGuards& guards) {
  phase_ = Phase::kPasses;
  update_ = {.rates = rates, .weight_decay = weight_decay, .loss_scale = loss_scale, .loss_limit = guards.loss_limit};
  const auto pass = [&] {
    accumulate(batches, loss_scale);
    return statistics_->local();
  };
  if (guards.run_passes) {
    guards.run_passes(pass);
  } else {
    accumulate(batches, loss_scale);
  }
  const ProfileRange range("optimizer");
  statistics_->set_gradient(optimizer_.local_numbers());
  if (vote) statistics_->vote(vote());
  phase_ = Phase::kExchanging;
  statistics_->exchange();
  if (guards.before_update) {
    statistics_->read();
    guards.before_update();
  }
  phase_ = Phase::kUpdating;
  update();
  return made();
}

void TrainStep::update() {
  const bool is_limited = std::isfinite(update_.loss_limit);
  optimizer_.step(update_.rates, update_.weight_decay, update_.loss_scale, statistics_->gradient(),
                  is_limited ? statistics_->loss().le(update_.loss_limit) : at::Tensor());
}

PendingStep TrainStep::made() {
  after_update();
  phase_ = Phase::kMade;
  statistics_of_made_ = statistics_;
  return PendingStep(*this, statistics_, update_.loss_scale, update_.loss_limit);
}

PendingStep TrainStep::complete(const at::Tensor& numbers) {
  MEGALITH_CHECK(is_updating() || awaits_numbers(), "a step that was not cut is completed");
  if (awaits_numbers()) {
    statistics_->take(numbers);
    try {
      update();
    } catch (const std::runtime_error&) {
      // Publishing to ranks that are gone; this rank's part is updated.
    }
  }
  return made();
}

StepResult PendingStep::read() const {
  StepResult result = TrainStep::result_of(*statistics_);
  const bool is_last = step_->statistics_ == statistics_;
  // The device's decision: NaN is not below a limit, and without a limit nothing is above.
  const bool is_allowed = !std::isfinite(loss_limit_) || result.losses.front().value <= loss_limit_;
  result.optimizer =
      step_->optimizer_.read(statistics_->host_gradient(), loss_scale_, /*has_gradients=*/is_last, is_allowed);
  return result;
}

void EvaluationSums::add(const EvaluationSums& more) {
  if (losses.empty()) {
    losses = more.losses;
    return;
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    losses[i].sum += more.losses.at(i).sum;
    losses[i].weight += more.losses.at(i).weight;
  }
}

EvaluationSums evaluate_batches(PipelinedModel& model, const Task& task, const std::vector<Batch>& whole_batches,
                                const Groups& groups, at::Device device, std::vector<at::Tensor>* rows) {
  const at::NoGradGuard no_grad;
  const std::vector<Batch> batches = parts_of(whole_batches, *groups.cp);
  const auto make_input = [&](int microbatch, std::span<const Unit> units) {
    ModelInput input = task.make_input(batches[static_cast<size_t>(microbatch)], device, units);
    input.context.is_training = false;
    return input;
  };
  const std::vector<std::string> names = task.evaluated_names();
  const at::Tensor pairs = at::zeros({std::ssize(names), 2}, at::TensorOptions(device).dtype(at::kDouble));
  const auto add = [&](int microbatch, const ModelOutput& output) {
    pairs.add_(task.evaluate(batches[static_cast<size_t>(microbatch)], output));
  };
  const HeadOutput head = task.evaluated_output();
  if (rows != nullptr) {
    // One by one, because every rank gets the result.
    for (int m = 0; m < std::ssize(batches); ++m) {
      const ModelOutput output = model.forward(make_input(m, model.plan().units), head);
      add(m, output);
      const bool has_logits = head == HeadOutput::kLogits;
      rows->push_back(
          (has_logits ? output.logits.flatten(1) : joined_tokens(output.token_losses, *groups.cp)).to(at::kCPU));
    }
    return sums_of(names, pairs);
  }
  model.evaluate(narrow<int>(std::ssize(batches)), make_input, head, add);
  // Ranks without the head add nothing.
  const at::Tensor all = pairs.to(groups.pp->device());
  groups.pp->all_reduce(all, ReduceOp::kSum, "evaluation of all stages").wait();
  return sums_of(names, all);
}

EvaluationSums sum_over_data(EvaluationSums sums, const Groups& groups) {
  std::vector<double> numbers;
  std::vector<std::string> names;
  for (const LossSum& loss : sums.losses) {
    names.push_back(loss.name);
    numbers.insert(numbers.end(), {loss.sum, loss.weight});
  }
  const at::Tensor all = at::tensor(numbers, at::kDouble).to(groups.dp_cp->device());
  groups.dp_cp->all_reduce(all, ReduceOp::kSum, "evaluation").wait();
  return sums_of(names, all);
}

}  // namespace megalith
