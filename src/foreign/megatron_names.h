// Megatron-LM's names of parameters and their layouts, in terms of ours.
//
// A file's tensor is a whole one, as torch_dist keeps it, or a tensor-parallel rank's. Layers and experts may be
// numbered in the name ("decoder.layers.3.…") or stacked before the first dim. Rows of linear_qkv are, for each query
// group, its query heads, then its key, then its value. Vocabularies are padded.
// Source: megatron-core 0.16, GPTModel.sharded_state_dict; Megatron-LM 3.0 and Stanford's (language_model.…).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "foreign/canonical_model.h"
#include "foreign/foreign_tensor.h"

namespace megalith {

struct MegatronParameter {
  struct Place {
    const Placement* placement;
    std::vector<Patch> patches;
  };
  std::vector<Place> places;  // a stack's layers each have one; empty: no parameter of the model
};

// The parameter of a whole tensor of this name and shape. UserError, with both shapes, if it does not fit the model.
MegatronParameter megatron_parameter(const CanonicalModel& model, std::string_view name,
                                     const std::vector<int64_t>& shape);

// How tensor-parallel ranks cut a layer's parameter; null if the name is none of the model.
struct MegatronCut {
  int dim = -1;           // -1: each rank holds the whole
  bool is_gated = false;  // gates above ups, each cut on its own
};
std::optional<MegatronCut> megatron_cut(const CanonicalModel& model, std::string_view name);

// Why a tensor or object of a checkpoint is of no use here; "" if it is not known to be.
std::string_view unused_in_megatron(std::string_view name);

}  // namespace megalith
