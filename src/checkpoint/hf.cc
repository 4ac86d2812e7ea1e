#include "checkpoint/hf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/flux_names.h"
#include "checkpoint/fused_experts.h"
#include "checkpoint/load_store.h"
#include "core/error.h"
#include "core/json.h"
#include "models/hf_rows.h"
#include "models/hf_text_part.h"
#include "models/model_bounds.h"
#include "models/model_head.h"

namespace megalith {

bool HfWeights::may_be_unused(std::string_view name) const {
  constexpr std::array<std::string_view, 4> kEndings = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                                        "embeddings.position_ids"};
  if (has_bert_heads && is_of_heads(name) && !name.starts_with("cls.predictions.")) return true;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); }) ||
         std::any_of(unused.begin(), unused.end(), [&](const std::string& prefix) { return name.starts_with(prefix); });
}

bool HfWeights::is_of_heads(std::string_view name) {
  return name.starts_with("cls.") || name.starts_with("bert.pooler.") || name.starts_with("pooler.");
}

namespace {

constexpr std::string_view kEncoderClass = "EncoderModel";  // suffix

std::vector<std::string> classes_of(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kHfConfigFile;
  if (!std::filesystem::exists(path)) return {};
  const Json json = load_json(path);
  const Json* classes = find_member(json, "architectures", path.string());
  if (classes == nullptr) return {};
  return json_as<std::vector<std::string>>(*classes, path.string() + ": architectures");
}

// The folder's class has another head.
bool lacks_head(const std::filesystem::path& folder, const ModelHead* head) {
  return head != nullptr && std::ranges::none_of(classes_of(folder), [&](const std::string& name) {
           return name.ends_with(head->hf_class);
         });
}

bool is_encoder_class(const std::string& name) { return name.ends_with(kEncoderClass); }

}  // namespace

bool lacks_heads(const std::filesystem::path& folder) {
  const std::vector<std::string> names = classes_of(folder);
  return !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return name.ends_with("Model") && !is_encoder_class(name);
  });
}

namespace {

void set_quantization(const Json& quantization, const std::string& where, TensorStore& store) {
  if (json_get_or<std::string>(quantization, "quant_method", "", where) == "mxfp4") return store.unpack_mxfp4();
  const auto block = json_get_or<std::vector<int64_t>>(quantization, "weight_block_size", {128, 128}, where);
  const bool is_pair = block.size() == 2 && std::ranges::min(block) >= 1 && std::ranges::max(block) <= kMostFfnWidth;
  if (!is_pair) {
    throw UserError(fmt::format("{}: weight_block_size is [{}], expected rows and columns of a block", where,
                                fmt::join(block, ", ")),
                    "the file is broken: fetch it again");
  }
  store.set_block_scales(block);
}

// The two networks called BERT differ only in norms' names.
void check_bert_network(const std::filesystem::path& folder, const TensorStore& store,
                        std::span<const PieceView> views) {
  constexpr std::string_view kAroundSums = ".attention.output.LayerNorm.", kInFront = ".attention.ln.";
  const auto has = [](const auto& all, std::string_view part, const auto& name_of_one) {
    return std::ranges::any_of(
        all, [&](const auto& one) { return std::string_view(name_of_one(one)).find(part) != std::string_view::npos; });
  };
  const auto stored = [&](std::string_view part) {
    return has(store.entries(), part, [](const auto& entry) { return std::string_view(entry.first); });
  };
  const auto wanted = [&](std::string_view part) {
    return has(views, part, [](const PieceView& view) { return std::string_view(view.piece.name); });
  };
  constexpr const char *kHuggingFace = "Hugging Face's BERT, which norms the sums of the stream and what joins it",
                       *kMegatron = "Megatron-LM's BERT, which norms what attention and the MLP read";
  const auto refuse = [&](const char* there, const char* here, const char* remedy) {
    throw UserError(
        fmt::format("{} holds {}; this model is {}: these are different networks", folder.string(), there, here),
        remedy);
  };
  if (stored(kAroundSums) && wanted(kInFront)) {
    refuse(kHuggingFace, kMegatron, "leave norm_placement and embedding_norm away: --load_hf gives the architecture");
  }
  if (stored(kInFront) && wanted(kAroundSums)) {
    refuse(kMegatron, kHuggingFace, "leave norm_placement and embedding_norm away: --load_hf gives the architecture");
  }
}

}  // namespace

HfWeights open_hf_weights(const std::filesystem::path& folder) {
  HfWeights weights{.store = TensorStore::open_folder(folder)};
  translate_flux_names(weights.store);
  const std::filesystem::path path = folder / kHfConfigFile;
  if (!std::filesystem::exists(path)) return weights;
  Json json = load_json(path);
  const std::string where = path.string();
  if (const HfTextPart* part = find_hf_text_part(json)) {
    json = text_config_of(*part, json, where);
    weights.store.drop_prefix(part->prefix);
    weights.unused.assign(part->others.begin(), part->others.end());
  }
  if (const Json* quantization = find_member(json, "quantization_config", where)) {
    set_quantization(*quantization, where, weights.store);
  }
  const auto type = json_get_or<std::string>(json, "model_type", "", where);
  split_fused_experts(weights.store, type);
  weights.has_bert_heads = type == "bert" || type == "megatron-bert";
  constexpr const char *kLayers = "num_hidden_layers", *kPredictions = "num_nextn_predict_layers";
  if (find_member(json, kLayers, where) != nullptr && find_member(json, kPredictions, where) != nullptr) {
    const int64_t num_layers = json_get_whole(json, kLayers, 0, kMostLayers, where);
    const int64_t num_predictions = json_get_whole(json, kPredictions, 0, kMostPredictionModules, where);
    for (int64_t i = 0; i < num_predictions; ++i) {
      weights.unused.push_back(fmt::format("model.layers.{}.", num_layers + i));
    }
  }
  return weights;
}

void load_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const Groups& groups,
             std::set<std::string>* begun_afresh, NonfiniteWeights nonfinite, const ModelHead* head) {
  HfWeights weights;
  bool has_no_heads = false, has_other_head = false, is_encoder = false;
  load_store({.what = folder.string(),
              .open =
                  [&] {
                    weights = open_hf_weights(folder);
                    has_no_heads = lacks_heads(folder);
                    has_other_head = lacks_head(folder, head);
                    is_encoder = std::ranges::any_of(classes_of(folder), is_encoder_class);
                    return weights.store;
                  },
              .check = [&](const TensorStore& store,
                           std::span<const PieceView> views) { check_bert_network(folder, store, views); },
              .may_be_missing =
                  [&](const std::string& name) {
                    const bool is_of_head = (has_no_heads && HfWeights::is_of_heads(name)) ||
                                            (has_other_head && head->has(name));
                    if (begun_afresh == nullptr || !is_of_head) return false;
                    begun_afresh->insert(name);
                    return true;
                  },
              .may_be_unused =
                  [&](std::string_view name) {
                    const bool is_of_family = HfWeights::is_of_heads(name) || name.starts_with("lm_head.");
                    return weights.may_be_unused(name) || (has_other_head && is_of_family);
                  },
              .remedy = [&]() -> std::string {
                if (is_encoder) return "config.json names an encoder without its decoder, which only embed reads";
                if (has_other_head) {
                  return fmt::format("config.json names no {}: a training run begins that head anew, with train "
                                     "--load_hf",
                                     head->hf_class);
                }
                if (has_no_heads) {
                  return "config.json names a class without heads: a training run begins them anew, with train "
                         "--load_hf";
                }
                return "give the architecture of this folder's config.json (or no architecture at all: --load_hf gives "
                       "it)";
              },
              .nonfinite = nonfinite},
             tensors, groups);
}

}  // namespace megalith
