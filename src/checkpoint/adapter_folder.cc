#include "checkpoint/adapter_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "checkpoint/adapter_base.h"
#include "checkpoint/exchange.h"
#include "checkpoint/export_folder.h"
#include "checkpoint/load_store.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "nn/low_rank_adapter.h"
#include "tensor_files/safetensors.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kDownEnding = ".lora_A.weight", kUpEnding = ".lora_B.weight",
                           kDiffusersPrefix = "transformer.", kDiffusersMetadata = "lora_adapter_metadata";

std::string_view prefix_of(bool is_of_diffusers) { return is_of_diffusers ? kDiffusersPrefix : "base_model.model."; }

std::string with_ending(const std::string& name, std::string_view from, std::string_view to) {
  return name.substr(0, name.size() - from.size()).append(to);
}

// "model.layers.0.mlp" of "model.layers.0.mlp.up_proj".
std::string folder_of(const std::string& layer) { return layer.substr(0, layer.rfind('.')); }

// "model.layers.0.mlp.up_proj"; empty unless a piece of A.
std::string layer_of_down(const Piece& piece) {
  return piece.name.ends_with(kDownEnding) ? with_ending(piece.name, kDownEnding, "") : "";
}

// The same folder, or inside it.
bool is_within(const std::string& folder, const std::string& other) {
  return folder == other || (folder.starts_with(other) && folder[other.size()] == '.');
}

// Parts sharing an A, by the first's folder.
using FusedParts = std::multimap<std::string, std::vector<std::string>>;

// Found by the A's name, which begins like the first part's: FLUX blocks have several.
const std::vector<std::string>& parts_of(const FusedParts& fused, const std::string& layer) {
  const auto [first, last] = fused.equal_range(folder_of(layer));
  MEGALITH_CHECK(first != last, "the A of {} has no B", layer);
  const auto common = [&](const FusedParts::value_type& group) {
    const std::string& part = group.second.front();
    return std::mismatch(part.begin(), part.end(), layer.begin(), layer.end()).first - part.begin();
  };
  return std::max_element(first, last, [&](const auto& a, const auto& b) { return common(a) < common(b); })->second;
}

// Layers with a B, those of one tensor's parts and one folder on a line: they may share an A.
std::set<std::string> lines_of_parts(std::span<const CheckpointTensor> adapters) {
  std::set<std::string> lines;
  for (const CheckpointTensor& tensor : adapters) {
    // A tensor's parts belong to one layer, perhaps of several experts with a folder each.
    std::vector<std::vector<std::string>> groups;
    std::set<std::string> seen;
    for (const Piece& piece : tensor.placement->pieces) {
      if (!piece.name.ends_with(kUpEnding)) continue;
      const std::string name = with_ending(piece.name, kUpEnding, ""), folder = folder_of(name);
      if (!seen.insert(name).second) continue;
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<std::string>& names) {
        const std::string other = folder_of(names.front());
        return is_within(folder, other) || is_within(other, folder);
      });
      if (group == groups.end())
        groups.push_back({name});
      else
        group->push_back(name);
    }
    for (const std::vector<std::string>& names : groups) lines.insert(fmt::format("{}", fmt::join(names, " ")));
  }
  return lines;
}

// `placements` owns the renamed placements. Collective: under FSDP a rank may hold a run of an A and none of its B.
std::vector<CheckpointTensor> under_file_names(std::span<const CheckpointTensor> adapters, std::string_view prefix,
                                               std::deque<Placement>& placements, Group& world) {
  std::set<std::string> lines;
  const std::string own = fmt::format("{}", fmt::join(lines_of_parts(adapters), "\n"));
  for (const std::string& text : gather_texts(world, own, "adapter parts")) {
    std::istringstream of_rank(text);
    for (std::string line; std::getline(of_rank, line);) lines.insert(line);
  }
  std::set<std::string> parts;  // with a B
  FusedParts fused;
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::vector<std::string> names;
    for (std::string name; words >> name;) names.push_back(name);
    parts.insert(names.begin(), names.end());
    if (names.size() < 2) continue;
    const std::string folder = folder_of(names.front());
    fused.emplace(folder, std::move(names));
  }
  std::vector<CheckpointTensor> named;
  const auto add = [&](const CheckpointTensor& tensor, const auto& rename) {
    Placement& placement = placements.emplace_back(*tensor.placement);
    for (Piece& piece : placement.pieces) {
      piece.name = std::string(prefix) + rename(piece);
      piece.aliases.clear();
    }
    named.push_back(tensor);
    named.back().placement = &placement;
  };
  for (const CheckpointTensor& tensor : adapters) {
    // A tensor's pieces belong to one layer, perhaps of several experts.
    const std::string layer = layer_of_down(tensor.placement->pieces.at(0));
    if (layer.empty() || parts.contains(layer)) {
      add(tensor, [](const Piece& piece) { return piece.name; });
      continue;
    }
    for (size_t i = 0; i < parts_of(fused, layer).size(); ++i) {  // parts share this A
      add(tensor,
          [&](const Piece& piece) { return parts_of(fused, layer_of_down(piece)).at(i) + std::string(kDownEnding); });
    }
  }
  return named;
}

// Saved tables under their other names, which PEFT keeps apart (`lm_head.weight` of a tied model).
std::vector<CheckpointTensor> tied_heads(std::span<const CheckpointTensor> adapters,
                                         std::deque<Placement>& placements) {
  std::vector<CheckpointTensor> heads;
  for (const CheckpointTensor& tensor : adapters) {
    for (const Piece& piece : tensor.placement->pieces) {
      for (const std::string& alias : piece.aliases) {
        if (!names_tied_head(alias)) continue;
        Placement& placement = placements.emplace_back(*tensor.placement);
        for (Piece& other : placement.pieces) other.name = alias;
        heads.push_back(tensor);
        heads.back().placement = &placement;
      }
    }
  }
  return heads;
}

// A and A0, B and -B0 as parts of one A and one B.
std::vector<CheckpointTensor> with_starts(std::span<const CheckpointTensor> adapters,
                                          std::deque<Placement>& placements) {
  std::vector<CheckpointTensor> joined;
  for (const CheckpointTensor& tensor : adapters) {
    joined.push_back(tensor);
    Placement& placement = placements.emplace_back(*tensor.placement);
    joined.back().placement = &placement;
    for (Piece& piece : placement.pieces) {
      for (const std::string_view ending : {kDownEnding, kUpEnding}) {
        const std::string of_start = with_ending(std::string(ending), ".weight", kStartEnding) + ".weight";
        const bool is_start = piece.name.ends_with(of_start);
        if (!is_start && !piece.name.ends_with(ending)) continue;
        const size_t dim = ending == kDownEnding ? 0 : 1;
        if (is_start) {
          piece.name = with_ending(piece.name, of_start, ending);
          piece.canonical.offset[dim] += piece.shape[dim];
          if (ending == kUpEnding) joined.back().local = tensor.local.neg();
        }
        piece.shape[dim] *= 2;
      }
    }
  }
  return joined;
}

// PEFT's target_modules. Whole names if `is_whole` (FLUX's last layer is named like one in each block) or if exclusions
// may skip layers; else the given word, or the last two words, unique in a block; for experts, numbered in between, the
// last.
std::vector<std::string> target_names(std::span<const CheckpointTensor> adapters, const LoraOptions& options,
                                      bool is_whole, Group& world) {
  const auto name_of = [&](const std::string& part) {
    if (is_whole || options.has_expressions()) return part;
    for (const std::string& word : options.target_modules) {
      if (part.ends_with("." + word)) return word;
    }
    const std::string folder = folder_of(part);
    const std::string above = folder.substr(folder.rfind('.') + 1);
    const bool is_expert = above.find_first_not_of("0123456789") == std::string::npos;
    return part.substr((is_expert ? folder.size() : folder.rfind('.')) + 1);
  };
  std::set<std::string> own;
  for (const CheckpointTensor& tensor : adapters) {
    for (const Piece& piece : tensor.placement->pieces) {
      if (piece.name.ends_with(kUpEnding)) own.insert(name_of(with_ending(piece.name, kUpEnding, "")));
    }
  }
  std::set<std::string> all;
  for (const std::string& names : gather_texts(world, fmt::format("{}", fmt::join(own, "\n")), "adapter targets")) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) {
      if (!name.empty()) all.insert(name);
    }
  }
  return {all.begin(), all.end()};
}

// layers: whole names of all that have an adapter.
Json make_adapter_config(const AdapterExport& settings, const std::vector<std::string>& targets,
                         const std::vector<std::string>& layers) {
  const LoraOptions& options = settings.options;
  const int64_t ranks = options.start().decomposes() ? 2 : 1;
  // Keeps alpha / rank, or alpha / sqrt(rank).
  const double alphas = options.use_rslora ? std::sqrt(static_cast<double>(ranks)) : static_cast<double>(ranks);
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  for (const std::string& layer : layers) {
    if (options.rank_of(layer) != options.dim) rank_pattern[layer] = options.rank_of(layer) * ranks;
    if (options.alpha_of(layer) != options.alpha) alpha_pattern[layer] = options.alpha_of(layer) * alphas;
  }
  Json config = {{"auto_mapping", nullptr},
                 {"bias", "none"},
                 {"exclude_modules", nullptr},
                 {"fan_in_fan_out", false},
                 {"init_lora_weights", true},
                 {"layers_pattern", nullptr},
                 {"layers_to_transform", nullptr},
                 {"lora_bias", false},
                 {"modules_to_save", nullptr},
                 {"rank_pattern", Json::object()},
                 {"alpha_pattern", Json::object()},
                 {"revision", nullptr},
                 {"task_type", settings.is_of_diffusers ? Json(nullptr) : Json("CAUSAL_LM")}};
  if (!settings.config.empty()) config.update(parse_json(settings.config, kAdapterConfigFile));
  config["peft_type"] = "LORA";
  config["inference_mode"] = true;
  config["r"] = options.dim * ranks;
  config["lora_alpha"] = options.alpha * alphas;
  config["rank_pattern"] = std::move(rank_pattern);
  config["alpha_pattern"] = std::move(alpha_pattern);
  config["modules_to_save"] = options.modules_to_save.empty() ? Json(nullptr) : Json(options.modules_to_save);
  config["lora_dropout"] = options.dropout;
  config["use_rslora"] = options.use_rslora;
  config["use_dora"] = options.use_dora;
  config["target_modules"] = targets;
  if (!settings.base.empty()) config["base_model_name_or_path"] = settings.base;
  if (!config.contains("base_model_name_or_path")) config["base_model_name_or_path"] = nullptr;
  return config;
}

// PEFT leaves the model unchanged at first. Others subtract from it (pissa, olora, corda), need a quantised one (loftq)
// or distribute ranks by data (eva).
bool keeps_base(const Json& init) { return init.is_boolean() || init == "gaussian" || init == "orthogonal"; }

// Refuses keys of unsupported features unless inactive.
//   has_conv1d  for GPT-2, whose weights are (in, out): PEFT corrects this key per layer, so other values are not
//               PEFT's
void refuse_unknown_forms(const Json& config, bool has_conv1d, const std::string& where) {
  constexpr std::array kRead = {"auto_mapping", "base_model_name_or_path", "inference_mode", "lora_alpha",
                                "lora_dropout", "peft_type", "peft_version", "r", "revision", "target_modules",
                                "use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save",
                                // Matter only with unsupported features.
                                "layers_pattern", "loftq_config", "eva_config", "corda_config", "qalora_group_size",
                                "megatron_config", "megatron_core", "runtime_config"};
  std::vector<std::string> refused;
  const auto refuse_unless = [&](const char* key, const auto& is_unused) {
    const Json* value = find_member(config, key, where);
    if (value != nullptr && !value->is_null() && !is_unused(*value)) {
      refused.push_back(fmt::format("{}: {}", key, dump_json(*value)));
    }
  };
  const auto is_false = [](const Json& value) { return value == Json(false); };
  const auto is_empty = [](const Json& value) { return value.empty(); };
  refuse_unless("bias", [](const Json& value) { return value == Json("none"); });
  refuse_unless("task_type", [](const Json& value) { return value == "CAUSAL_LM" || value == "SEQ_2_SEQ_LM"; });
  refuse_unless("init_lora_weights", keeps_base);
  const bool changes_base = !refused.empty() && refused.back().starts_with("init_lora_weights");
  refuse_unless("fan_in_fan_out", [&](const Json& value) { return has_conv1d || is_false(value); });
  for (const auto& [key, value] : config.items()) {
    const bool is_checked =
        key == "bias" || key == "task_type" || key == "init_lora_weights" || key == "fan_in_fan_out";
    if (is_checked || std::find(kRead.begin(), kRead.end(), key) != kRead.end()) continue;
    refuse_unless(key.c_str(), [&](const Json& other) { return is_false(other) || is_empty(other); });
  }
  if (refused.empty()) return;
  if (changes_base) {
    throw UserError(fmt::format("{} asks for what there is not here: {}: the adapters may belong beside another model "
                                "than the one they name",
                                where, fmt::join(refused, ", ")),
                    "save them with PEFT as plain ones, save_pretrained(DIR, path_initial_model_for_weight_conversion="
                    "INITIAL), or merge them into their model with PEFT, and load that");
  }
  throw UserError(fmt::format("{} asks for what there is not here: {}", where, fmt::join(refused, ", ")),
                  "merge these adapters into their model with PEFT, and load that");
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  return fs::exists(folder / kDiffusersAdapterFile) ||
         (fs::exists(folder / kAdapterConfigFile) && fs::exists(folder / kAdapterWeightsFile));
}

namespace {

bool is_of_diffusers(const fs::path& folder) { return fs::exists(folder / kDiffusersAdapterFile); }

std::vector<std::string> stored_names(const fs::path& folder) {
  const auto store =
      TensorStore::open_file(folder / (is_of_diffusers(folder) ? kDiffusersAdapterFile : kAdapterWeightsFile));
  std::vector<std::string> names;
  for (const auto& [name, entry] : store.entries()) names.push_back(name);
  return names;
}

bool has_part(const std::vector<std::string>& names, std::string_view part) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

struct PeftConfig {
  Json values;
  std::string where;
  std::string text;  // as in the file

  // In the file's order, of which the first that fits counts.
  std::vector<std::string> pattern(const std::string& key) const {
    std::vector<std::string> entries;
    const Json* found = find_member(values, key, where);
    if (found == nullptr) return entries;
    const OrderedJson all = OrderedJson::parse(text);
    for (const auto& [name, value] : all.items()) {
      if (name != key && name != std::string(kDiffusersPrefix) + key) continue;
      for (const auto& [layer, number] : value.items()) {
        const auto what = fmt::format("{}: {}: {}", where, key, layer);
        entries.push_back(fmt::format("{}={}", layer, number_text(json_as<double>(found->at(layer), what))));
      }
    }
    return entries;
  }
};

PeftConfig read_adapter_config(const fs::path& folder) {
  if (fs::exists(folder / kAdapterConfigFile)) {
    const fs::path file = folder / kAdapterConfigFile;
    return {load_json(file), file.string(), read_file(file)};
  }
  const std::string where = (folder / kDiffusersAdapterFile).string();
  const SafetensorsFile file(where);
  const auto told = file.metadata().find(std::string(kDiffusersMetadata));
  if (told == file.metadata().end()) {
    throw UserError(
        fmt::format("{} does not say what its adapters' lora_alpha is ({} in its metadata, or {} beside it)", where,
                    kDiffusersMetadata, kAdapterConfigFile),
        "save these adapters again with diffusers 0.35 or newer");
  }
  Json config = {{"peft_type", "LORA"}};
  const Json metadata = parse_json(told->second, where);
  for (const auto& [key, value] : metadata.items()) {
    config[key.starts_with(kDiffusersPrefix) ? key.substr(kDiffusersPrefix.size()) : key] = value;
  }
  return {config, where, told->second};
}

// PEFT saves several adapters to a folder each.
std::vector<std::string> adapters_below(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (is_adapter_folder(entry.path())) found.push_back(entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

AdapterFolder read_adapter_folder(const fs::path& folder) {
  if (!is_adapter_folder(folder)) {
    if (const std::vector<std::string> below = adapters_below(folder); !below.empty()) {
      throw UserError(fmt::format("{} holds the adapters {}, each by itself, and adapters are not mixed",
                                  folder.string(), fmt::join(below, ", ")),
                      fmt::format("name one of them, such as {}", (folder / below.front()).string()));
    }
    throw UserError(fmt::format("{} holds no adapters: {} and {} are expected there", folder.string(),
                                kAdapterConfigFile, kAdapterWeightsFile),
                    "name a folder that PEFT's save_pretrained() or --save_adapter wrote");
  }
  const PeftConfig peft = read_adapter_config(folder);
  const auto& [config, where, text] = peft;
  AdapterFolder read{.options = {}, .config = dump_json(config)};
  const auto type = json_get<std::string>(config, "peft_type", where);
  if (type != "LORA") {
    throw UserError(fmt::format("{}: peft_type is {}", where, type), "only adapters of type LORA are read");
  }
  refuse_unknown_forms(config, has_part(stored_names(folder), ".transformer.h."), where);
  LoraOptions& options = read.options;
  options.enabled = true;
  options.dim = json_get_whole(config, "r", 1, int64_t{1} << 20, where);
  options.alpha = json_get<double>(config, "lora_alpha", where);
  options.dropout = json_get_or<double>(config, "lora_dropout", 0, where);
  options.use_rslora = json_get_or<bool>(config, "use_rslora", false, where);
  options.use_dora = json_get_or<bool>(config, "use_dora", false, where);
  options.rank_pattern = peft.pattern("rank_pattern");
  options.alpha_pattern = peft.pattern("alpha_pattern");
  options.modules_to_save = json_get_or<std::vector<std::string>>(config, "modules_to_save", {}, where);
  const Json& targets = get_member(config, "target_modules", where);
  options.target_modules = targets.is_string() ? std::vector{json_as<std::string>(targets, where + ": target_modules")}
                                               : json_as<std::vector<std::string>>(targets, where + ": target_modules");
  return read;
}

void check_adapter_kind(const fs::path& folder, bool draws_pictures, const fs::path& model) {
  const std::vector<std::string> names = stored_names(folder);
  const bool has_text_layers =
      has_part(names, ".layers.") || has_part(names, ".layer.") || has_part(names, ".h.") || has_part(names, ".block.");
  const bool has_picture_blocks = has_part(names, "transformer_blocks.");
  if (draws_pictures ? has_picture_blocks || !has_text_layers : !has_picture_blocks) return;
  const char *writes = "a language model", *draws = "a model of pictures (FLUX)";
  throw UserError(
      fmt::format("{} holds adapters of {} ({}), and {} is {}", folder.string(), draws_pictures ? writes : draws,
                  names.front(), model.string(), draws_pictures ? draws : writes),
      "name the model that they were trained beside, or adapters of this one");
}

void load_adapter(const fs::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  NonfiniteWeights nonfinite) {
  std::deque<Placement> placements;
  const bool is_picture = is_of_diffusers(folder);
  std::vector<CheckpointTensor> tensors(adapters.begin(), adapters.end()), tied = tied_heads(adapters, placements);
  std::vector<at::Tensor> tables;
  for (CheckpointTensor& head : tied) {
    // The table itself, to be compared with its other name's.
    const at::Tensor table = head.local;
    head.local = at::zeros_like(table);
    tensors.push_back(head);
    tables.push_back(table);
  }
  load_store(
      {.what = folder.string(),
       .open =
           [&] { return TensorStore::open_file(folder / (is_picture ? kDiffusersAdapterFile : kAdapterWeightsFile)); },
       // PEFT repeats the model's own weight of a head that has an adapter.
       .may_be_unused = [](std::string_view name) { return name.ends_with(".base_layer.weight"); },
       .remedy = []() -> std::string {
         return "these are adapters of another model, or of other layers: leave lora.target_modules out, and "
                "name their model";
       },
       .nonfinite = nonfinite},
      under_file_names(tensors, prefix_of(is_picture), placements, *groups.world), groups);
  run_on_all(*groups.world, "load tied tables", [&] {
    for (size_t i = 0; i < tied.size(); ++i) {
      if (at::equal(tied[i].local, tables[i])) continue;
      throw UserError(fmt::format("{}: {} differs from the embedding, and the model has one table for both",
                                  folder.string(), tied[i].placement->pieces.at(0).name),
                      "merge these adapters into their model with PEFT, untied, and load that");
    }
  });
}

void save_adapter(const fs::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  const AdapterExport& settings) {
  std::deque<Placement> placements;
  const bool is_picture = settings.is_of_diffusers;
  std::vector<CheckpointTensor> tensors(adapters.begin(), adapters.end());
  for (const CheckpointTensor& head : tied_heads(adapters, placements)) tensors.push_back(head);
  if (settings.options.start().decomposes()) tensors = with_starts(tensors, placements);
  Group& world = *groups.world;
  const std::vector<CheckpointTensor> named =
      under_file_names(tensors, prefix_of(is_picture), placements, world);
  const Json config = make_adapter_config(settings, target_names(adapters, settings.options, is_picture, world),
                                          target_names(adapters, settings.options, /*is_whole=*/true, world));
  std::map<std::string, std::string> metadata;
  if (is_picture) {
    Json told = Json::object();
    for (const auto& [key, value] : config.items()) told[std::string(kDiffusersPrefix) + key] = value;
    metadata.emplace(kDiffusersMetadata, dump_json(told));
  }
  write_export({.folder = folder,
                .option = "--save_adapter",
                .stem = is_picture ? "pytorch_lora_weights" : "adapter_model",
                .kind = "a folder of adapters",
                .is_replaceable = is_adapter_folder,
                .write_rest =
                    [&](const fs::path& place) {
                      write_file_atomic(place / kAdapterConfigFile, dump_json_pretty(config));
                      if (!settings.base_checksum.empty()) write_base(place, settings.base_checksum);
                    },
                .metadata = std::move(metadata)},
               named, groups, settings.settings);
}

}  // namespace megalith
