// Activations to recompute in backward, and to offload. Names and meanings are Megatron-LM's; recompute_layer_ids is
// Primus's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/module.h"

namespace megalith {

struct RecomputeOptions {
  std::optional<std::string> recompute_granularity;  // "full", "selective"
  std::optional<std::string> recompute_method;       // "uniform", "block"
  std::optional<int64_t> recompute_num_layers;
  std::vector<std::string> recompute_modules;  // empty: core_attn
  std::vector<int64_t> recompute_layer_ids;    // in the whole model
  bool recompute_activations = false;          // selective
  int64_t cpu_offloading_num_layers = 0;

  void visit(OptionVisitor& v);

  bool is_full() const { return recompute_granularity == "full"; }
  bool is_selective() const { return recompute_granularity == "selective" || recompute_activations; }
  SelectiveRecompute selective() const;
};

// The model's properties that the rules need.
struct RecomputedModel {
  int64_t num_layers = 0;  // of the whole model
  bool has_experts = false, has_shared_experts = false, has_latent_attention = false;
};
std::vector<UserError> check_recompute_options(const RecomputeOptions& options, const RecomputedModel& model);

// Notes on valid options: layers beyond the model's, words without effect.
std::vector<std::string> recompute_notes(const RecomputeOptions& options, int64_t num_layers);

// Full recomputation of one chunk.
struct RecomputePlan {
  int64_t layers_per_block = 1;  // run, kept and recomputed together
  std::set<int64_t> layers;      // recomputed blocks, by their first layer in the whole model
  std::set<int64_t> offloaded;   // among them, with inputs in host memory

  bool is_empty() const { return layers.empty(); }
};
// For options that passed check_recompute_options(); the chunk holds layers first_layer to first_layer + num_layers -
// 1.
//
//   uniform  groups of recompute_num_layers layers, the last perhaps smaller, each keeping its first input
//   block    the first recompute_num_layers layers of the chunk, each separately
RecomputePlan make_recompute_plan(const RecomputeOptions& options, int64_t first_layer, int64_t num_layers);

}  // namespace megalith
