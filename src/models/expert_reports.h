// Reports of a model with experts on a pass and a step: objective terms, token counts, and the biases they move. Layers
// are numbered as by ModelConfig::has_experts_at().
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/model.h"

namespace megalith {

class Group;

// Model::added_losses() and observations() of the expert layers. num_layers: of the whole model, prediction modules
// included.
std::vector<std::string> expert_loss_names(const ModelConfig& config);
std::vector<ObservationSpec> expert_observations(const ModelConfig& config, int64_t num_layers);

// Adds this pass's observations and, with kLoss, its terms: as Megatron-LM logs them, means over layers and
// microbatches. Losses are summed over cp ranks, each of which has a microbatch's value.
void report_experts(const ModelConfig& config, const Group& cp, const ExpertRecords& records, HeadOutput head,
                    ModelOutput& output);

// Model::after_step() of the expert selection biases.
void move_expert_biases(const ModelConfig& config, const std::map<int64_t, ExpertRouter*>& routers,
                        const std::vector<ObservedTensor>& observed, const at::Tensor& is_made);

}  // namespace megalith
