// FLUX.1 in Black Forest Labs' single file: its names and fused tensors.
#pragma once

#include "checkpoint/tensor_store.h"

namespace megalith {

// Translates a store with that file's names ("double_blocks.0.img_attn.qkv.weight") to diffusers': fused tensors become
// parts, the halves of the last modulation swap, a leading "model.diffusion_model." goes. Other stores are unchanged.
// UserError for an unknown name or shape in this form.
void translate_flux_names(TensorStore& store);

}  // namespace megalith
