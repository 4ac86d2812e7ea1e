// A layer's experts as transformers 5 has them in memory: gate_up_proj (e, 2 f, h), gates above ups, and down_proj
// (e, h, f). Its save_pretrained() still writes a matrix for each expert, as ours; states that PyTorch's own functions
// save (FSDP, optimizers, torch.save) have these, and Mixtral's in a module of another name.
// Source: transformers 5.24, conversion_mapping.py (mixtral, qwen2_moe).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class TensorStore;

// Canonical matrices whose rows follow one another in an expert's part of this tensor. Empty: it is none of these.
std::vector<std::string> matrices_of_fused_expert(std::string_view name, int64_t expert, bool is_mixtral);

// Mixtral's older name of one of its modules; other names as they are.
std::string mixtral_name(std::string_view name);

// Gives a folder's tensors of this model_type their canonical names. UserError for a tensor that is of other dims.
void split_fused_experts(TensorStore& store, std::string_view model_type);

}  // namespace megalith
