#include "parallel/recompute_options.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace megalith {
namespace {

// Parts of every decoder. mlp_act is ours: Megatron-LM's moe_act for MLPs.
std::vector<std::string> modules_of(const RecomputedModel& model) {
  std::vector<std::string> modules = {"core_attn", "layernorm", "mlp", "mlp_act"};
  if (model.has_experts) modules.insert(modules.end(), {"moe", "moe_act"});
  if (model.has_shared_experts) modules.emplace_back("shared_experts");
  if (model.has_latent_attention) modules.emplace_back("mla_up_proj");
  return modules;
}

std::string missing_part(const std::string& module) {
  if (module == "moe" || module == "moe_act") return "experts";
  if (module == "shared_experts") return "shared experts";
  if (module == "mla_up_proj") return "latent attention";
  return "";
}

void check_modules(const RecomputeOptions& options, const RecomputedModel& model, std::vector<UserError>& errors) {
  const std::vector<std::string> known = modules_of(model);
  for (const std::string& module : options.recompute_modules) {
    if (std::find(known.begin(), known.end(), module) != known.end()) continue;
    const std::string missing = missing_part(module);
    errors.emplace_back(missing.empty()
                            ? fmt::format("recompute_modules has no '{}'", module)
                            : fmt::format("recompute_modules names {}, but the model has no {}", module, missing),
                        fmt::format("use some of {}", fmt::join(known, ", ")));
  }
}

void check_full(const RecomputeOptions& options, int64_t num_layers, std::vector<UserError>& errors) {
  if (!options.recompute_layer_ids.empty()) {
    if (options.recompute_method) {
      errors.emplace_back(
          fmt::format("recompute_layer_ids and recompute_method {} both choose layers", *options.recompute_method),
          "keep one of them");
    }
    if (options.recompute_num_layers.value_or(0) > 0) {
      errors.emplace_back(fmt::format("recompute_layer_ids and recompute_num_layers {} both choose layers",
                                      *options.recompute_num_layers),
                          "keep one of them");
    }
    for (const int64_t layer : options.recompute_layer_ids) {
      if (layer >= 0 && layer < num_layers) continue;
      errors.emplace_back(
          fmt::format("recompute_layer_ids has {}, the model's layers are 0 to {}", layer, num_layers - 1),
          "give numbers of layers, counted from 0");
    }
    return;
  }
  if (!options.recompute_method) {
    errors.emplace_back("recompute_granularity full needs recompute_method",
                        "add --recompute_method block (the first recompute_num_layers layers) or uniform (all, in "
                        "groups of recompute_num_layers)");
  }
  if (!options.recompute_num_layers) {
    errors.emplace_back(
        "recompute_granularity full needs recompute_num_layers",
        fmt::format("add --recompute_num_layers {}", options.recompute_method == "uniform" ? 1 : num_layers));
  } else if (*options.recompute_num_layers == 0 && options.recompute_method == "uniform") {
    errors.emplace_back("recompute_num_layers 0 makes no groups for recompute_method uniform",
                        "use at least 1, or recompute_method block");
  }
}

// Refuses options only for full recomputation.
void check_not_full(const RecomputeOptions& options, std::vector<UserError>& errors) {
  const std::string given = options.is_selective() ? "is selective" : "is not given";
  const auto refuse = [&](const std::string& what) {
    errors.emplace_back(
        fmt::format("{} is for recompute_granularity full, which {}", what, given),
        fmt::format("{}, or leave it away",
                    options.is_selective() ? "write recompute_granularity full" : "add --recompute_granularity full"));
  };
  if (options.recompute_method) refuse("recompute_method " + *options.recompute_method);
  // Presets write 0 for "none".
  if (options.recompute_num_layers.value_or(0) > 0) {
    refuse(fmt::format("recompute_num_layers {}", *options.recompute_num_layers));
  }
  if (!options.recompute_layer_ids.empty()) refuse("recompute_layer_ids");
  if (options.cpu_offloading_num_layers > 0) {
    refuse(fmt::format("cpu_offloading_num_layers {}", options.cpu_offloading_num_layers));
  }
}

}  // namespace

void RecomputeOptions::visit(OptionVisitor& v) {
  v.group("Recomputation and offloading", {.changes_numbers = false, .in_toy = InToy::kKept});
  v.field("recompute_granularity", recompute_granularity,
          "What to compute again in backward instead of keeping it. full: keep only the inputs of layers, and compute "
          "the layers again in backward. selective: compute again what "
          "is large and cheap (recompute_modules). Results are the same to the bit. Default: keep all activations.")
      .words({"full", "selective"});
  v.field("recompute_method", recompute_method,
          "For recompute_granularity full. uniform cuts all layers into groups of recompute_num_layers and keeps each "
          "group's input; block recomputes the first recompute_num_layers layers of a pipeline stage, each by itself.")
      .words({"uniform", "block"});
  v.field("recompute_num_layers", recompute_num_layers,
          "Number of layers in a group (uniform), or of recomputed layers (block); more than there are means all.")
      .unit("layers")
      .at_least(0)
      .in_toy(InToy::kMade);
  v.field("recompute_modules", recompute_modules,
          "For recompute_granularity selective: core_attn (attention's output and softmax statistics), layernorm "
          "(outputs of norms), mlp (all within the MLP), mlp_act (the product of gate and up), moe (all of a mixture "
          "of experts), moe_act (the activations of its experts), shared_experts, mla_up_proj (latent attention's "
          "projections from the latents). Default: core_attn.");
  v.field("recompute_layer_ids", recompute_layer_ids,
          "For recompute_granularity full, instead of recompute_method: the layers to recompute, counted from 0 over "
          "the whole model.")
      .in_toy(InToy::kMade);
  v.field("recompute_activations", recompute_activations, "The same as recompute_granularity selective.");
  v.field("cpu_offloading_num_layers", cpu_offloading_num_layers,
          "With full recomputation: keep what the first so many recomputed layers of a stage store in pinned host "
          "memory. It is copied there while the GPU computes, and brought back one layer ahead.")
      .unit("layers")
      .at_least(0)
      .in_toy(InToy::kMade);
}

SelectiveRecompute RecomputeOptions::selective() const {
  if (!is_selective()) return {};
  const auto has = [&](const char* module) {
    return std::find(recompute_modules.begin(), recompute_modules.end(), module) != recompute_modules.end();
  };
  return {.core_attention = recompute_modules.empty() || has("core_attn"),
          .norms = has("layernorm"),
          .mlp = has("mlp"),
          .mlp_activation = has("mlp_act"),
          .moe = has("moe"),
          .expert_activation = has("moe_act"),
          .shared_experts = has("shared_experts"),
          .latent_up = has("mla_up_proj")};
}

std::vector<UserError> check_recompute_options(const RecomputeOptions& options, const RecomputedModel& model) {
  std::vector<UserError> errors;
  if (options.is_full() && options.recompute_activations) {
    errors.emplace_back("recompute_activations means selective, and recompute_granularity is full", "keep one of them");
    return errors;
  }
  if (options.is_full())
    check_full(options, model.num_layers, errors);
  else
    check_not_full(options, errors);
  if (options.is_selective()) {
    check_modules(options, model, errors);
  } else if (!options.recompute_modules.empty() && !options.is_full()) {
    errors.emplace_back(fmt::format("recompute_modules {} is for recompute_granularity selective, which is not given",
                                    fmt::join(options.recompute_modules, ",")),
                        "add --recompute_granularity selective, or leave it away");
  }
  return errors;
}

std::vector<std::string> recompute_notes(const RecomputeOptions& options, int64_t num_layers) {
  std::vector<std::string> notes;
  if (!options.is_full()) return notes;
  if (options.recompute_num_layers.value_or(0) > num_layers) {
    notes.push_back(fmt::format("recompute_num_layers {} is more than the model's {} layers: all are recomputed",
                                *options.recompute_num_layers, num_layers));
  }
  if (options.cpu_offloading_num_layers > num_layers) {
    notes.push_back(
        fmt::format("cpu_offloading_num_layers {} is more than the model's {} layers: all that are "
                    "recomputed are offloaded",
                    options.cpu_offloading_num_layers, num_layers));
  }
  if (!options.recompute_modules.empty()) {
    notes.emplace_back("recompute_granularity is full: recompute_modules is ignored");
  }
  return notes;
}

RecomputePlan make_recompute_plan(const RecomputeOptions& options, int64_t first_layer, int64_t num_layers) {
  RecomputePlan plan;
  if (!options.is_full()) return plan;
  const int64_t end = first_layer + num_layers;
  const int64_t count = std::min(options.recompute_num_layers.value_or(0), num_layers);
  if (!options.recompute_layer_ids.empty()) {
    for (const int64_t layer : options.recompute_layer_ids) {
      if (first_layer <= layer && layer < end) plan.layers.insert(layer);
    }
  } else if (options.recompute_method == "uniform") {
    plan.layers_per_block = std::max<int64_t>(count, 1);
    for (int64_t layer = first_layer; layer < end; layer += plan.layers_per_block) plan.layers.insert(layer);
  } else {
    for (int64_t layer = first_layer; layer < first_layer + count; ++layer) plan.layers.insert(layer);
  }
  int64_t num_offloaded = 0;
  for (const int64_t layer : plan.layers) {
    if (num_offloaded >= options.cpu_offloading_num_layers) break;
    plan.offloaded.insert(layer);
    num_offloaded += plan.layers_per_block;
  }
  return plan;
}

}  // namespace megalith
