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
  std::string_view hf_class;                   // ending of Hugging Face's classes: "ForSequenceClassification"
  std::vector<std::string_view> without_class;  // families, by name, for which transformers has no such class
  HfRows (*hf_rows)();                          // what these classes have beside the family's rows
  std::vector<std::string_view> parameters;     // beginnings of canonical names: what files of other classes lack
  // The modules and the pass of the head's unit, which begins with the final norm.
  void (*make)(UnitModule& unit, const ModelConfig& config, const TransformerNames& names, const LayerContext& context);

  bool has(std::string_view parameter) const;
};

// Null: models of this type have their family's.
const ModelHead* find_head(ModelType type);
// The head of the class that a config.json names. Null: it is the family's.
const ModelHead* find_head(const Json& file);

// "LlamaForSequenceClassification"
std::string hf_class_of(const ModelFamily& family, const ModelHead& head);

// A model with the layers of this one and the head of that type; as it is where it has that head, or where there is no
// such model.
ModelConfig with_head(ModelConfig config, ModelType type);

}  // namespace megalith
