// Activation memory before a run begins, measured on the meta device (parallel/activation_memory.h).
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "models/model.h"
#include "parallel/activation_memory.h"
#include "train/config.h"

namespace megalith {

// The cost of a microbatch in a meta-device chunk with blocks cut by the plan. Gives the chunk gradient buffers, and
// leaves it without a runner.
ActivationCost measure_chunk(Model& chunk, const ModelInput& input, const RecomputePlan& plan, bool are_layers_alike);

// b sequences of this rank's s tokens, as shapes; row_length as in ForwardContext.
ModelInput shape_of_microbatch(int64_t b, int64_t s, int64_t row_length);
// Adds an encoder's input: sequences of encoder_s tokens.
void add_encoder_shapes(ModelInput& input, int64_t encoder_s);
// Adds pictures and captions for model_type diffusion_model: context.s tokens of a picture.
void add_flux_shapes(ModelInput& input, const ModelConfig& config, int64_t text_length);
// Adds a biencoder's questions, as long as its texts.
void add_query_shapes(ModelInput& input);

// A rank's peak bytes of activations in a full step's schedule, without kernels' workspaces.
int64_t measure_activations(const Resolved& resolved, const Mesh& mesh, int rank);

// Likewise, and the share due to the head: norm, logits, loss and gradients.
struct ActivationOwners {
  int64_t all = 0, of_head = 0;
};
ActivationOwners measure_activation_owners(const Resolved& resolved, const Mesh& mesh, int rank);

}  // namespace megalith
