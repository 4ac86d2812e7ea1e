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

struct ModelFamily {
  std::string_view name;           // "llama"
  std::string_view hf_model_type;  // config.json's model_type; empty: no Hugging Face class has this architecture
  std::string_view hf_class;       // "LlamaForCausalLM"
  // Whether this family provides the architecture; the first of kFamilies that does is taken for Megatron's flags.
  bool (*provides)(const ModelConfig&);
  // The whole architecture from config.json of transformers 4 or 5; UserError names the key that cannot be honoured.
  ModelConfig (*from_hf)(const nlohmann::json&);
  // config.json that transformers 4 and 5 load.
  nlohmann::json (*to_hf)(const ModelConfig&, at::ScalarType dtype);
  // What its models are lists of. Depends on numbers of layers and on what is tied, and on no other size.
  std::vector<Unit> (*units)(const ModelConfig&);
  // The chunk that has this range of the units.
  std::unique_ptr<Model> (*build)(const ModelConfig&, const LayerContext&, const ModelPart&);

  std::unique_ptr<Model> build_whole(const ModelConfig& config, const LayerContext& context) const {
    return build(config, context, ModelPart::whole(units(config)));
  }
};

std::span<const ModelFamily* const> model_families();

// UserError lists what is provided when none fits.
const ModelFamily& family_for(const ModelConfig& config);

// The units of the model that a configuration describes. One that lacks widths, as in `megalith plan`, is taken for one
// of Megatron-LM's GPT.
std::vector<Unit> model_units(const ModelConfig& config);

// Reads DIR/config.json. UserError when the file is missing, broken, or of no known family.
struct HfModel {
  const ModelFamily* family;
  ModelConfig config;
};
HfModel read_hf_config(const std::filesystem::path& folder);

}  // namespace megalith
