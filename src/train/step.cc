// The training step; see step.h.
#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "nn/expert_router.h"
#include "train/profile.h"

namespace megalith {

ModelInput make_model_input(const Batch& batch, at::Device device, const ObjectiveScales& scales) {
  constexpr std::string_view kRead[] = {field::kTokens, field::kLabels, field::kLossWeights, field::kPositionIds,
                                        field::kDocumentIds};
  const Batch here = batch.to(device, kRead);
  ModelInput input;
  input.tokens = here.at(field::kTokens);
  input.labels = here.at(field::kLabels);
  input.loss_weights = here.at(field::kLossWeights);
  input.scales = scales;
  ForwardContext& context = input.context;
  context.b = batch.num_rows();
  context.s = batch.length(field::kTokens);
  const at::Tensor row_index = batch.row_index(field::kTokens);
  const int64_t row_length = batch.row_length(field::kTokens);
  context.row_ids = (batch.at(field::kSampleIndex).unsqueeze(1) * row_length + row_index.unsqueeze(0)).to(device);
  if (batch.is_part()) {
    context.row_length = row_length;
    context.mask.query_positions = row_index.to(device);
  }
  context.position_ids = here.find(field::kPositionIds);
  if (batch.is_part() && !context.position_ids.defined()) {
    // Counted over the whole row, where the model would count from 0.
    context.position_ids = context.mask.query_positions.expand({context.b, -1});
  }
  if (batch.has(field::kDocumentIds)) {
    context.mask.query_documents = here.at(field::kDocumentIds);
    context.mask.key_documents = here.whole(field::kDocumentIds);
  }
  return input;
}

TrainStep::TrainStep(PipelinedModel& model, DataParallel& data, Optimizer& optimizer, const Groups& groups,
                     at::Device device)
    : model_(model), data_(data), optimizer_(optimizer), groups_(groups), device_(device) {}

StepResult TrainStep::compute_gradients(const std::vector<Batch>& whole_batches, double loss_scale) {
  MEGALITH_CHECK(!whole_batches.empty(), "a step without microbatches");
  const std::vector<Batch> batches = parts_of(whole_batches, *groups_.cp);
  StepResult result;
  double local_tokens = 0;
  for (const Batch& batch : batches) local_tokens += batch.at(field::kLossWeights).sum(at::kDouble).item<double>();
  result.valid_tokens = groups_.dp_cp->reduced(local_tokens, ReduceOp::kSum, "valid tokens");

  ObjectiveScales scales;
  // A batch without a single valid token has no loss and no gradient; dividing by one keeps it finite.
  scales.per_weight = loss_scale / std::max(result.valid_tokens, 1.0);
  scales.per_microbatch = loss_scale / static_cast<double>(std::ssize(batches) * groups_.dp->size());

  // Of each term: its sum and its weight.
  const std::vector<std::string> names = model_.loss_names();
  std::vector<std::pair<at::Tensor, at::Tensor>> sums(names.size());
  ExpertRecords experts;  // summed over the microbatches
  const auto add_terms = [&](const ModelOutput& output) {
    if (output.experts) {
      for (const auto& [layer, record] : *output.experts) {
        ExpertRecord& sum = experts[layer];
        sum.counts = sum.counts.defined() ? sum.counts + record.counts : record.counts;
        if (!record.num_dropped.defined()) continue;
        sum.num_dropped = sum.num_dropped.defined() ? sum.num_dropped + record.num_dropped : record.num_dropped;
      }
    }
    for (const LossTerm& term : output.terms) {
      const auto place = std::find(names.begin(), names.end(), term.name);
      MEGALITH_CHECK(place != names.end(), "the model did not announce its loss term '{}'", term.name);
      auto& [sum, weight] = sums[static_cast<size_t>(place - names.begin())];
      sum = sum.defined() ? sum + term.sum : term.sum;
      weight = weight.defined() ? weight + term.weight : term.weight;
    }
  };
  data_.begin_step();
  model_.train(
      narrow<int>(std::ssize(batches)),
      [&](int microbatch) { return make_model_input(batches[static_cast<size_t>(microbatch)], device_, scales); },
      [&](bool is_last) { data_.begin_microbatch(is_last); }, add_terms);
  {
    const ProfileRange range("finish gradients");
    data_.finish_step();
  }

  const at::Tensor pairs = at::zeros({std::ssize(names), 2}, at::TensorOptions(device_).dtype(at::kDouble));
  for (size_t i = 0; i < names.size(); ++i) {
    if (!sums[i].first.defined()) continue;
    pairs[static_cast<int64_t>(i)][0].copy_(sums[i].first);
    pairs[static_cast<int64_t>(i)][1].copy_(sums[i].second);
  }
  groups_.dp_cp->all_reduce(pairs, ReduceOp::kSum, "losses").wait();
  groups_.pp->all_reduce(pairs, ReduceOp::kSum, "losses of all stages").wait();
  const at::Tensor host = pairs.to(at::kCPU);
  for (size_t i = 0; i < names.size(); ++i) {
    const double* pair = host.const_data_ptr<double>() + 2 * i;
    const double value = pair[0] / (pair[1] > 0 ? pair[1] : 1.0);
    result.losses.push_back({names[i], value});
    if (!std::isfinite(value)) result.is_loss_finite = false;
  }
  result.expert_loads = sum_expert_loads(experts);
  return result;
}

// Ranks have tokens or layers of their own, so the sum over all of them has everything once.
std::vector<ExpertLoad> TrainStep::sum_expert_loads(const ExpertRecords& records) const {
  const ModelConfig& config = model_.config();
  if (!config.has_experts()) return {};
  const int64_t num_layers = config.num_layers + config.num_prediction_modules();
  const int64_t num_experts = *config.num_experts;
  const bool has_capacity = config.has_capacity();
  // A row a layer: the choices of its experts, then how many were dropped.
  const at::Tensor all =
      at::zeros({num_layers, num_experts + 1}, at::TensorOptions(groups_.world->device()).dtype(at::kLong));
  for (const auto& [layer, record] : records) {
    all[layer].narrow(0, 0, num_experts).copy_(record.counts);
    if (record.num_dropped.defined()) all[layer][num_experts].copy_(record.num_dropped);
  }
  groups_.world->all_reduce(all, ReduceOp::kSum, "loads of experts").wait();
  const at::Tensor host = all.to(at::kCPU);
  std::vector<ExpertLoad> loads;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (!config.has_experts_at(layer)) continue;
    const int64_t* row = host.const_data_ptr<int64_t>() + layer * (num_experts + 1);
    ExpertLoad& load = loads.emplace_back(ExpertLoad{layer, std::vector<int64_t>(row, row + num_experts), {}});
    if (has_capacity) load.num_dropped = row[num_experts];
  }
  return loads;
}

void TrainStep::update_expert_biases(const std::vector<ExpertLoad>& loads) {
  const ModelConfig& config = model_.config();
  if (!config.moe_router_enable_expert_bias) return;
  const std::map<int64_t, ExpertRouter*> routers = model_.routers();
  for (const ExpertLoad& load : loads) {
    const auto router = routers.find(load.layer);
    if (router == routers.end()) continue;
    update_expert_bias(*router->second->expert_bias(), at::tensor(load.tokens, at::kLong),
                       config.moe_router_bias_update_rate);
  }
}

StepResult TrainStep::run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale) {
  StepResult result = compute_gradients(batches, loss_scale);
  const ProfileRange range("optimizer");
  result.optimizer = optimizer_.step(lr, weight_decay, loss_scale);
  if (!result.optimizer.was_skipped) update_expert_biases(result.expert_loads);
  return result;
}

EvaluationSums evaluate_batches(PipelinedModel& model, const std::vector<Batch>& whole_batches, const Groups& groups,
                                at::Device device, std::vector<at::Tensor>* token_losses) {
  const at::NoGradGuard no_grad;
  const std::vector<Batch> batches = parts_of(whole_batches, *groups.cp);
  const auto make_input = [&](int microbatch) {
    ModelInput input = make_model_input(batches[static_cast<size_t>(microbatch)], device, {});
    input.context.is_training = false;
    return input;
  };
  EvaluationSums sums;
  const auto add = [&](int microbatch, const at::Tensor& losses) {
    const Batch& batch = batches[static_cast<size_t>(microbatch)];
    const at::Tensor weights = batch.at(field::kLossWeights).to(losses.device(), at::kDouble);
    sums.loss_sum += (losses.to(at::kDouble) * weights).sum().item<double>();
    sums.tokens += weights.sum().item<double>();
  };
  if (token_losses != nullptr) {
    // One at a time, because every rank is to have them.
    for (int m = 0; m < std::ssize(batches); ++m) {
      const at::Tensor losses = model.forward(make_input(m), HeadOutput::kTokenLosses).token_losses;
      add(m, losses);
      token_losses->push_back(joined_tokens(losses, *groups.cp).to(at::kCPU));
    }
    return sums;
  }
  model.evaluate(narrow<int>(std::ssize(batches)), make_input, HeadOutput::kTokenLosses,
                 [&](int microbatch, const ModelOutput& output) { add(microbatch, output.token_losses); });
  // Ranks without the head have nothing to add.
  sums.loss_sum = groups.pp->reduced(sums.loss_sum, ReduceOp::kSum, "evaluation loss");
  sums.tokens = groups.pp->reduced(sums.tokens, ReduceOp::kSum, "evaluation tokens");
  return sums;
}

EvaluationSums sum_over_data(EvaluationSums sums, const Groups& groups) {
  sums.loss_sum = groups.dp_cp->reduced(sums.loss_sum, ReduceOp::kSum, "evaluation loss");
  sums.tokens = groups.dp_cp->reduced(sums.tokens, ReduceOp::kSum, "evaluation tokens");
  return sums;
}

}  // namespace megalith
