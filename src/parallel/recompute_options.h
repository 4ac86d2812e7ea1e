// Which activations are computed again in backward instead of being kept, and where those that are kept lie. Names and
// meanings are Megatron-LM's; recompute_layer_ids is Primus's.
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
  std::vector<int64_t> recompute_layer_ids;    // numbers in the whole model
  bool recompute_activations = false;          // selective
  int64_t cpu_offloading_num_layers = 0;

  void visit(OptionVisitor& v);

  bool is_full() const { return recompute_granularity == "full"; }
  bool is_selective() const { return recompute_granularity == "selective" || recompute_activations; }
  // Those that layers are built with.
  SelectiveRecompute selective() const;
};

// What of the model the rules depend on.
struct RecomputedModel {
  int64_t num_layers = 0;  // of the whole
  bool has_experts = false, has_shared_experts = false, has_latent_attention = false;
};
std::vector<UserError> check_recompute_options(const RecomputeOptions& options, const RecomputedModel& model);

// What a person should know once of options that hold: layers beyond the model's, words without effect.
std::vector<std::string> recompute_notes(const RecomputeOptions& options, int64_t num_layers);

// What full recomputation does to one chunk of a model.
struct RecomputePlan {
  int64_t layers_per_block = 1;  // that run, are kept and are computed again together
  std::set<int64_t> layers;      // recomputed, by the number in the whole model of a block's first layer
  std::set<int64_t> offloaded;   // among them, those whose inputs wait in host memory

  bool is_empty() const { return layers.empty(); }
};
// The options passed check_recompute_options(); the chunk holds layers first_layer to first_layer + num_layers - 1.
//
//   uniform  groups of recompute_num_layers layers, the last perhaps smaller, each keeping the input of its first
//   block    the first recompute_num_layers layers of the chunk, each by itself
RecomputePlan make_recompute_plan(const RecomputeOptions& options, int64_t first_layer, int64_t num_layers);

}  // namespace megalith
