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
  std::string_view hf_model_type = {};  // config.json's model_type; empty: no Hugging Face class
  std::string_view hf_class = {};       // "LlamaForCausalLM"
  // Classes whose folders are also read: the same network with fewer heads.
  std::vector<std::string_view> other_classes = {};
  // Its dictionary (models/hf_rows.h); null without a Hugging Face class.
  HfRows (*hf_rows)() = nullptr;
  // Depends only on layer counts and weight tying.
  std::vector<Unit> (*units)(const ModelConfig&) = transformer_units;
  // Builds the chunk with a range of the units.
  std::unique_ptr<Model> (*build)(const ModelConfig&, const LayerContext&, const ModelPart&) = build_transformer;

  // The whole architecture from config.json of transformers 4 or 5. UserError names a key not supported.
  ModelConfig from_hf(const nlohmann::json& file) const;
  // config.json for transformers 4 and 5; may differ from a model its class cannot express (see make_hf_config()).
  // Takes any config that satisfies check_model_config(); UserError for one with no form.
  nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) const;

  std::unique_ptr<Model> build_whole(const ModelConfig& config, const LayerContext& context) const {
    return build(config, context, ModelPart::whole(units(config)));
  }
};

std::span<const ModelFamily* const> model_families();

// First family of the model_type whose from_hf(to_hf(config)) means the same (models/architecture.h); else the one
// without a Hugging Face class, which takes any. UserErrors of check_model_config().
const ModelFamily& family_for(const ModelConfig& config);

// Units of the described model. Without widths (`megalith plan`), treated as Megatron-LM's GPT or BERT.
std::vector<Unit> model_units(const ModelConfig& config);

// config.json of an export. UserError if it would not describe this model: names options in which the family's class,
// or the nearest, differs.
nlohmann::json make_hf_config(const ModelFamily& family, const ModelConfig& config, at::ScalarType dtype);

// Reads DIR/config.json. UserError when missing, broken, or of no known family.
struct HfModel {
  const ModelFamily* family;
  ModelConfig config;
  std::vector<std::string> notes = {};  // what was ignored in the file, and why it is harmless
};
HfModel read_hf_config(const std::filesystem::path& folder);

}  // namespace megalith
