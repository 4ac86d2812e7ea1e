// The training step; see step.h.
#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "core/error.h"
#include "data/context_shard.h"
#include "train/profile.h"

namespace megalith {

ModelInput make_model_input(const Batch& batch, at::Device device, const ObjectiveScales& scales) {
  ModelInput input;
  const int64_t b = batch.tokens.size(0), s = batch.tokens.size(1);
  const auto move = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; };
  input.tokens = move(batch.tokens);
  input.labels = move(batch.labels);
  input.loss_weights = move(batch.loss_weights);
  input.context.b = b;
  input.context.s = s;
  input.context.position_ids = move(batch.position_ids);
  const bool is_part = batch.row_length > 0;
  const at::Tensor row_index = is_part ? batch.row_index : at::arange(s, at::kLong);
  input.context.row_ids =
      move(batch.sample_index.unsqueeze(1) * (is_part ? batch.row_length : s) + row_index.unsqueeze(0));
  input.context.mask.is_causal = true;
  if (batch.document_ids.defined()) {
    input.context.mask.query_documents = move(batch.document_ids);
    input.context.mask.key_documents = is_part ? move(batch.row_document_ids) : input.context.mask.query_documents;
  }
  if (is_part) {
    input.context.row_length = batch.row_length;
    input.context.mask.query_positions = move(batch.row_index);
  }
  input.scales = scales;
  return input;
}

TrainStep::TrainStep(Model& model, DataParallel& data, Optimizer& optimizer, const Groups& groups, at::Device device)
    : model_(model), data_(data), optimizer_(optimizer), groups_(groups), device_(device) {}

StepResult TrainStep::compute_gradients(const std::vector<Batch>& whole_batches, double loss_scale) {
  MEGALITH_CHECK(!whole_batches.empty(), "a step without microbatches");
  const std::vector<Batch> batches = shard_batches(whole_batches, *groups_.cp);
  StepResult result;
  double local_tokens = 0;
  for (const Batch& batch : batches) local_tokens += batch.loss_weights.sum(at::kDouble).item<double>();
  result.valid_tokens = groups_.dp_cp->reduced(local_tokens, ReduceOp::kSum, "valid tokens");

  ObjectiveScales scales;
  // A batch without a single valid token has no loss and no gradient; dividing by one keeps it finite.
  scales.per_weight = loss_scale / std::max(result.valid_tokens, 1.0);
  scales.per_microbatch = loss_scale / static_cast<double>(batches.size());

  struct Sum {
    std::string name;
    at::Tensor sum, weight;
    bool is_per_microbatch;
  };
  std::vector<Sum> sums;
  data_.begin_step();
  for (size_t i = 0; i < batches.size(); ++i) {
    data_.begin_microbatch(i + 1 == batches.size());
    const ModelInput input = make_model_input(batches[i], device_, scales);
    at::Tensor objective;
    {
      const ProfileRange range("forward");
      at::AutoGradMode record(true);
      ModelOutput output = model_.forward(input, {}, HeadOutput::kLoss);
      for (const LossTerm& term : output.terms) {
        objective = objective.defined() ? objective + term.objective : term.objective;
        auto known = std::find_if(sums.begin(), sums.end(), [&](const Sum& s) { return s.name == term.name; });
        if (known == sums.end()) {
          sums.push_back({term.name, term.sum, term.weight, term.is_per_microbatch});
        } else {
          known->sum = known->sum + term.sum;
          known->weight = known->weight + term.weight;
        }
      }
    }
    const ProfileRange range("backward");
    objective.backward();
  }
  {
    const ProfileRange range("finish gradients");
    data_.finish_step();
  }

  for (const Sum& sum : sums) {
    at::Tensor pair = at::stack({sum.sum.to(at::kDouble), sum.weight.to(at::kDouble)});
    groups_.dp_cp->all_reduce(pair, ReduceOp::kSum, sum.name).wait();
    const double weight = pair[1].item<double>();
    const double value = pair[0].item<double>() / (weight > 0 ? weight : 1.0);
    result.losses.push_back({sum.name, value});
    if (!std::isfinite(value)) result.is_loss_finite = false;
  }
  return result;
}

StepResult TrainStep::run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale) {
  StepResult result = compute_gradients(batches, loss_scale);
  const ProfileRange range("optimizer");
  result.optimizer = optimizer_.step(lr, weight_decay, loss_scale);
  return result;
}

EvaluationSums evaluate_batch(Model& model, const Batch& batch, at::Device device, at::Tensor* token_losses) {
  at::NoGradGuard no_grad;
  ModelInput input = make_model_input(batch, device, {});
  input.context.is_training = false;
  const ModelOutput output = model.forward(input, {}, HeadOutput::kTokenLosses);
  const at::Tensor weights = input.loss_weights.to(at::kDouble);
  EvaluationSums sums;
  sums.loss_sum = (output.token_losses.to(at::kDouble) * weights).sum().item<double>();
  sums.tokens = weights.sum().item<double>();
  if (token_losses != nullptr) *token_losses = output.token_losses.to(at::kCPU);
  return sums;
}

}  // namespace megalith
