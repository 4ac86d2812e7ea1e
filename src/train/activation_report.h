// Activation memory before a run begins, measured on the meta device (parallel/activation_memory.h).
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "models/input_spec.h"
#include "models/model.h"
#include "parallel/activation_memory.h"
#include "train/config.h"

namespace megalith {

// Each block of a meta-device chunk. The chunk gets gradient buffers, and loses its runner.
std::vector<BlockMemory> measure_blocks(Model& chunk, const ModelInput& input, const RecomputePlan& plan,
                                        bool are_layers_alike, PassScope scope = {});

// Cost of a microbatch in a meta-device chunk, its blocks cut by the plan. The chunk gets gradient buffers, and loses
// its runner.
ActivationCost measure_chunk(Model& chunk, const ModelInput& input, const RecomputePlan& plan, bool are_layers_alike);

// b sequences of this rank's s tokens, as shapes; row_length as in ForwardContext.
ModelInput shape_of_microbatch(int64_t b, int64_t s, int64_t row_length);
// As this run's ranks have it.
ModelInput shape_of_microbatch(const Resolved& resolved);
void add_shapes(ModelInput& input, const ModelConfig& config, std::span<const InputSpec> specs);

// Peak activation bytes of a rank in a full step's schedule, without kernel workspaces.
int64_t measure_activations(const Resolved& resolved, const Mesh& mesh, int rank);

// Likewise, with the head's share: norm, logits, loss and gradients.
struct ActivationOwners {
  int64_t all = 0, of_head = 0;
};
ActivationOwners measure_activation_owners(const Resolved& resolved, const Mesh& mesh, int rank);

}  // namespace megalith
