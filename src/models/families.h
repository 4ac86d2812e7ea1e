// Every model family we can build, and its dictionary between Hugging Face's config.json and ours.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace megalith {

class HfRows;

// A decoder with Llama's names (models/transformer.h).
std::vector<Unit> transformer_units(const ModelConfig& config);
std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

struct ModelFamily {
  std::string_view name;  // "llama"
  ModelType model_type = ModelType::kGpt;
  std::string_view hf_model_type = {};  // config.json's model_type; empty: no Hugging Face class has this architecture
  std::string_view hf_class = {};       // "LlamaForCausalLM"
  // Other classes whose folders are read: the same network with fewer heads.
  std::vector<std::string_view> other_classes = {};
  // Its dictionary (models/hf_rows.h); null without a Hugging Face class.
  HfRows (*hf_rows)() = nullptr;
  // What its models are lists of. Depends on numbers of layers and on what is tied, and on no other size.
  std::vector<Unit> (*units)(const ModelConfig&) = transformer_units;
  // The chunk that has this range of the units.
  std::unique_ptr<Model> (*build)(const ModelConfig&, const LayerContext&, const ModelPart&) = build_transformer;

  // The whole architecture from config.json of transformers 4 or 5; UserError names the key that cannot be honoured.
  ModelConfig from_hf(const nlohmann::json& file) const;
  // config.json that transformers 4 and 5 load; its class may differ from the model where it cannot say it (see
  // make_hf_config()). Any config that satisfies check_model_config() is taken; UserError for one that it has no form
  // for.
  nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) const;

  std::unique_ptr<Model> build_whole(const ModelConfig& config, const LayerContext& context) const {
    return build(config, context, ModelPart::whole(units(config)));
  }
};

std::span<const ModelFamily* const> model_families();

// The first family of the model_type whose from_hf(to_hf(config)) means the same (models/architecture.h); else the one
// without a Hugging Face class, which takes any. UserErrors of check_model_config().
const ModelFamily& family_for(const ModelConfig& config);

// The units of the model that a configuration describes. One that lacks widths, as in `megalith plan`, is taken for one
// of Megatron-LM's GPT or BERT.
std::vector<Unit> model_units(const ModelConfig& config);

// config.json of an export. UserError when it would not say this model: names the options that the family's class, or
// the nearest one, has otherwise.
nlohmann::json make_hf_config(const ModelFamily& family, const ModelConfig& config, at::ScalarType dtype);

// Reads DIR/config.json. UserError when the file is missing, broken, or of no known family.
struct HfModel {
  const ModelFamily* family;
  ModelConfig config;
  std::vector<std::string> notes = {};  // what was left out of the file, and why that is no harm
};
HfModel read_hf_config(const std::filesystem::path& folder);

}  // namespace megalith
