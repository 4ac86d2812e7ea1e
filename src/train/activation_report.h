// The memory of activations before a run begins: its model runs once on the meta device (parallel/activation_memory.h).
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "models/model.h"
#include "parallel/activation_memory.h"
#include "train/config.h"

namespace megalith {

// The cost of one microbatch in a chunk on the meta device, whose blocks are cut as the plan wants. The chunk gets
// gradient buffers, and runs through no runner afterwards.
ActivationCost measure_chunk(Model& chunk, const ModelInput& input, const RecomputePlan& plan, bool are_layers_alike);

// b sequences of this rank's s tokens without data; row_length as ForwardContext has it.
ModelInput shape_of_microbatch(int64_t b, int64_t s, int64_t row_length);
// Adds what a model with an encoder reads beside it: sequences of encoder_s tokens.
void add_encoder_shapes(ModelInput& input, int64_t encoder_s);
// Adds pictures and captions as model_type diffusion_model reads them: context.s tokens of a picture.
void add_flux_shapes(ModelInput& input, const ModelConfig& config, int64_t text_length);
// Adds the questions that a biencoder reads beside its texts, of as many tokens.
void add_query_shapes(ModelInput& input);

// The most bytes of activations that a rank holds at once in the schedule of a full step. What kernels need while they
// run is not part of it.
int64_t measure_activations(const Resolved& resolved, const Mesh& mesh, int rank);

// The same, and what of it would go if there were no head: norm, logits, loss and their gradients.
struct ActivationOwners {
  int64_t all = 0, of_head = 0;
};
ActivationOwners measure_activation_owners(const Resolved& resolved, const Mesh& mesh, int rank);

}  // namespace megalith
