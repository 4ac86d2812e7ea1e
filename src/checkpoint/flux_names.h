// FLUX.1 in Black Forest Labs' single file.
#pragma once

#include "checkpoint/tensor_store.h"

namespace megalith {

// Translates that file's names ("double_blocks.0.img_attn.qkv.weight") to diffusers': fused tensors become parts,
// halves of the last modulation swap, "model.diffusion_model." goes. Leaves other stores unchanged. UserError for
// unknown names or shapes.
void translate_flux_names(TensorStore& store);

}  // namespace megalith
