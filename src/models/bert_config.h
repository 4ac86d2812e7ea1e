// What the two networks that are called BERT share: config.json, names of tensors, building. Their difference is where
// the norms stand.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/families.h"
#include "models/transformer_names.h"

namespace megalith::bert {

// One of them, as its Hugging Face classes have it.
struct Network {
  std::string model_type;    // of config.json
  std::string hf_class;      // with both heads
  std::string masked_class;  // without the classifier of sentences
  NormPlacement norm_placement;
  bool embedding_norm;
};

ModelConfig read(const nlohmann::json& json, const Network& network);
nlohmann::json write(const ModelConfig& config, at::ScalarType dtype, const Network& network);

// The names that both have, below `prefix`. Those of the norms in the layers are Hugging Face's BERT's.
TransformerNames names(const std::string& prefix = "bert");
// The same with those of the other network's norms beside them.
TransformerNames megatron_names(const std::string& prefix = "bert");

// Under which names files may have what is called `name` below `bert.`, that name left out.
std::vector<std::string> other_names(const std::string& name);

// Files may leave `bert.` away, as those of the class without heads do, and old ones call a norm's weight gamma and its
// bias beta.
std::unique_ptr<Model> build(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
                             const ModelPart& part);

}  // namespace megalith::bert
