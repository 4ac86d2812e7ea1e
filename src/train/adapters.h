// A run's low-rank adapters (nn/low_rank_adapter.h): options, and tensors in checkpoints.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/error.h"
#include "nn/adapter_options.h"
#include "parallel/data_parallel.h"
#include "train/config.h"

namespace megalith {

// For LayerContext::lora; null without adapters.
std::shared_ptr<const LoraOptions> adapters_of(const Config& config);

// An error if adapter options are set without enabling adapters: all weights would be trained.
std::vector<UserError> check_adapters_are_meant(const OptionSet& options, const LoraOptions& lora);

// Errors of the adapters for this architecture, which satisfies check_model_config(). Leaves linear_qkv out of the
// targets, with a note, for latent attention, which has none: Megatron-Bridge passes over such a target.
std::vector<UserError> check_adapters(Resolved& resolved, const ModelConfig& architecture);

// Errors for options that exclude 4-bit weights (lora.quantization); architecture likewise.
std::vector<UserError> check_packed_weights(const Resolved& resolved, const ModelConfig& architecture);

// base: the model's, as it is loaded. adapters: trained or kept beside it, lora.modules_to_save among them, which are
// in both.
struct TensorsByOwner {
  std::vector<CheckpointTensor> base, adapters;
};
TensorsByOwner tensors_by_owner(const DataParallel& data);

// Sets trained row lengths (lora.use_dora) to the frozen weights'. data.publish() must follow. Collective over the
// world.
void begin_lengths(const DataParallel& data, const Groups& groups);

}  // namespace megalith
