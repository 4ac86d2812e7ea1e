// What a model with experts tells of a pass and of a step: terms of the objective, counts of tokens, and the biases
// that move by them. The model's layers are numbered through, as ModelConfig::has_experts_at() counts them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/model.h"

namespace megalith {

class Group;

// Model::added_losses() and observations() of the layers with experts. num_layers: of the whole model, prediction
// modules counted.
std::vector<std::string> expert_loss_names(const ModelConfig& config);
std::vector<ObservationSpec> expert_observations(const ModelConfig& config, int64_t num_layers);

// Adds what the layers of this pass observed, and with kLoss their terms: as Megatron-LM logs them, the mean over
// layers and microbatches. Losses are summed over the cp ranks, which all have a microbatch's value.
void report_experts(const ModelConfig& config, const Group& cp, const ExpertRecords& records, HeadOutput head,
                    ModelOutput& output);

// Model::after_step() of the biases that choose experts.
void move_expert_biases(const ModelConfig& config, const std::map<int64_t, ExpertRouter*>& routers,
                        const std::vector<ObservedTensor>& observed, const at::Tensor& is_made);

}  // namespace megalith
