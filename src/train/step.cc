// The training step; see step.h.
#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/profile.h"

namespace megalith {
namespace {

// By what each of the task's losses is divided: its weight in the global batch.
std::vector<double> sum_weights(const Task& task, const std::vector<Batch>& batches, const Groups& groups) {
  std::vector<double> weights(task.loss_names().size());
  for (const Batch& batch : batches) {
    const std::vector<double> here = task.count_weights(batch);
    MEGALITH_CHECK(here.size() == weights.size(), "{} weights of {} losses", here.size(), weights.size());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += here[i];
  }
  const at::Tensor all = at::tensor(weights, at::kDouble).to(groups.dp_cp->device());
  groups.dp_cp->all_reduce(all, ReduceOp::kSum, "valid tokens").wait();
  const at::Tensor host = all.to(at::kCPU);
  const double* first = host.const_data_ptr<double>();
  return {first, first + host.numel()};
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
    : model_(model), task_(task), data_(data), optimizer_(optimizer), groups_(groups), device_(device) {}

// Gradients of all microbatches, and what this rank has to tell of them.
void TrainStep::accumulate(const std::vector<Batch>& whole_batches, double loss_scale) {
  MEGALITH_CHECK(!whole_batches.empty(), "a step without microbatches");
  const std::vector<Batch> batches = parts_of(whole_batches, *groups_.cp);
  std::vector<std::string> names = task_.loss_names();
  const std::vector<double> weights = sum_weights(task_, batches, groups_);
  std::vector<TermScale> terms;
  for (size_t i = 0; i < names.size(); ++i) {
    // A batch without a single valid token has no loss and no gradient; dividing by one keeps it finite.
    terms.push_back({.name = names[i], .per_weight = loss_scale / std::max(weights[i], 1.0)});
  }
  const double per_microbatch = loss_scale / static_cast<double>(std::ssize(batches) * groups_.dp->size());

  for (std::string& added : model_.added_losses()) names.push_back(std::move(added));
  statistics_ = std::make_unique<StepStatistics>(std::move(names), model_.observations(), groups_, device_);
  const auto make_input = [&](int microbatch, std::span<const Unit> units) {
    ModelInput input = task_.make_input(batches[static_cast<size_t>(microbatch)], device_, units);
    input.terms = terms;
    input.per_microbatch = per_microbatch;
    return input;
  };
  data_.begin_step();
  model_.train(
      narrow<int>(std::ssize(batches)), make_input, [&](bool is_last) { data_.begin_microbatch(is_last); },
      [&](const ModelOutput& output) { statistics_->add(output); });
  const ProfileRange range("finish gradients");
  data_.finish_step();
}

StepResult TrainStep::result_of(const StepStatistics& statistics) const {
  StepResult result;
  for (const LossSum& loss : statistics.losses()) {
    result.losses.push_back({loss.name, loss.mean()});
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

void TrainStep::after_update() { model_.after_step(statistics_->observed()); }

StepResult TrainStep::run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale,
                          const std::function<int()>& vote) {
  accumulate(batches, loss_scale);
  const ProfileRange range("optimizer");
  statistics_->set_gradient(optimizer_.local_numbers());
  if (vote) statistics_->vote(vote());
  statistics_->exchange();
  StepResult result = result_of(*statistics_);
  result.optimizer = optimizer_.step(lr, weight_decay, loss_scale, statistics_->gradient());
  if (!result.optimizer.was_skipped) after_update();
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
                                const Groups& groups, at::Device device, std::vector<at::Tensor>* token_losses) {
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
  if (token_losses != nullptr) {
    MEGALITH_CHECK(head == HeadOutput::kTokenLosses, "the task {} has no losses of tokens", task.name());
    // One at a time, because every rank is to have them.
    for (int m = 0; m < std::ssize(batches); ++m) {
      const ModelOutput output = model.forward(make_input(m, model.plan().units), head);
      add(m, output);
      token_losses->push_back(joined_tokens(output.token_losses, *groups.cp).to(at::kCPU));
    }
    return sums_of(names, pairs);
  }
  model.evaluate(narrow<int>(std::ssize(batches)), make_input, head, add);
  // Ranks without the head have nothing to add.
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
