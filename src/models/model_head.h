// Heads that replace a family's own: a row for each type of model that puts one on other models' layers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/families.h"
#include "models/hf_rows.h"
#include "models/transformer_names.h"
#include "models/unit_chunk.h"

namespace megalith {

struct ModelHead {
  ModelType model_type;
  std::string_view hf_class;                   // suffix of Hugging Face's classes: "ForSequenceClassification"
  std::vector<std::string_view> without_class;  // families that transformers has no such class for
  HfRows (*hf_rows)();                          // added to the family's rows
  std::vector<std::string_view> parameters;     // prefixes of canonical names: missing in other classes' files
  // Makes the modules and pass of the head's unit, including the final norm.
  void (*make)(UnitModule& unit, const ModelConfig& config, const TransformerNames& names, const LayerContext& context);

  bool has(std::string_view parameter) const;
};

// Null: the family's own.
const ModelHead* find_head(ModelType type);
// Head of config.json's class. Null: the family's own.
const ModelHead* find_head(const Json& file);

// "LlamaForSequenceClassification"
std::string hf_class_of(const ModelFamily& family, const ModelHead& head);

// The same layers with that type's head; unchanged if it has it already, or no such model exists.
ModelConfig with_head(ModelConfig config, ModelType type);

}  // namespace megalith
