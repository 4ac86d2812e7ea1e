// Megatron-LM's names of parameters and their layouts, in terms of ours.
//
// A file's tensor is a whole one, as torch_dist keeps it, or a tensor-parallel rank's. Layers and experts may be
// numbered in the name ("decoder.layers.3.…") or stacked before the first dim. Rows of linear_qkv are, for each query
// group, its query heads, then its key, then its value; of a T5's linear_kv, its key, then its value. Vocabularies are
// padded.
// Source: megatron-core 0.16, sharded_state_dict of GPTModel, BertModel and T5Model; Megatron-LM 3.0 and Stanford's
// (language_model.…).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foreign/canonical_model.h"
#include "foreign/foreign_tensor.h"

namespace megalith {

// A whole tensor of this name; a stack's layers are a place each. UserError, with both shapes, if the one that is
// stored does not fit the model.
ForeignLayout megatron_layout(const CanonicalModel& model, std::string_view name,
                              const std::optional<std::vector<int64_t>>& stored = std::nullopt);

// A tensor to write for megatron-core, which names some differently in models of its own layers and of Transformer
// Engine's: all names of one.
struct MegatronTensor {
  std::vector<std::string> names;
  ForeignLayout layout;
};
// Layers are stacked if they are alike, as megatron-core does.
std::vector<MegatronTensor> megatron_tensors(const CanonicalModel& model);

// How tensor-parallel ranks cut a layer's parameter; null if the name is none of the model.
struct MegatronCut {
  int dim = -1;           // -1: each rank holds the whole
  int64_t num_parts = 1;  // above one another, each cut on its own: gates and ups
};
std::optional<MegatronCut> megatron_cut(const CanonicalModel& model, std::string_view name);

// A layer's tensor: its number and its expert's, if they are in the name, and the rest.
struct MegatronLayerName {
  std::optional<int64_t> layer, expert;
  bool is_of_decoder = false;  // of a T5, whose encoder has layers too
  std::string rest;  // "mlp.experts.linear_fc1.weight"
};
std::optional<MegatronLayerName> megatron_layer_name(std::string_view name);

// A T5's module keeps its head and its positions under two names; its optimizer knows one of them.
bool is_second_megatron_name(const CanonicalModel& model, std::string_view name);

// The option model_type of a network with these tensors, which Megatron-LM's args do not say: bert or t5; "" for
// others.
std::string_view megatron_model_type(const std::vector<std::string>& names);

// Why a tensor or object of a checkpoint is of no use here; "" if it is not known to be.
std::string_view unused_in_megatron(std::string_view name);

}  // namespace megalith
