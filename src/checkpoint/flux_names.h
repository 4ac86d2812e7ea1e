// FLUX.1 in the single file that Black Forest Labs publish: its names, and what they join.
#pragma once

#include "checkpoint/tensor_store.h"

namespace megalith {

// Where a store has that file's names ("double_blocks.0.img_attn.qkv.weight"), it gets diffusers': parts of what the
// file joins, and halves of the last modulation the other way round. Other stores stay as they are. Names that begin
// with "model.diffusion_model." lose that. UserError for a tensor of this form with an unknown name or another shape.
// Source: diffusers, scripts/convert_flux_to_diffusers.py; black-forest-labs/flux, model.py.
void translate_flux_names(TensorStore& store);

}  // namespace megalith
