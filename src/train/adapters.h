// Low-rank adapters of a run (nn/low_rank_adapter.h): what its options mean for its model, and which tensors a
// checkpoint of such a run holds.
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

// An error when adapters are described and nothing says whether there are any: all weights would be trained.
std::vector<UserError> check_adapters_are_meant(const OptionSet& options);

// Everything wrong with the adapters of this architecture, which satisfies check_model_config().
std::vector<UserError> check_adapters(const Config& config, const ModelConfig& architecture);

// Everything that weights in four bits (lora.quantization) do not go with; of an architecture likewise.
std::vector<UserError> check_packed_weights(const Resolved& resolved, const ModelConfig& architecture);

// What the adapters hold, and what all else holds.
struct TensorsByOwner {
  std::vector<CheckpointTensor> base, adapters;
};
TensorsByOwner tensors_by_owner(const DataParallel& data);

// Sets the lengths of rows that are trained (lora.use_dora) to those of the frozen weights beside them, whatever of
// both this rank holds. Then data.publish() is due. Collective over the world.
void begin_lengths(const DataParallel& data, const Groups& groups);

}  // namespace megalith
