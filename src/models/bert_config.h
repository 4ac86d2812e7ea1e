// The two networks that are called BERT, which differ in the place of their norms: config.json, names, building.
#pragma once

#include <string>
#include <vector>

#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/transformer_names.h"

namespace megalith::bert {

// The keys that both have. The class without the classifier of sentences says that there is none.
HfRows rows(const std::string& hf_class, const std::string& masked_class);

// The names that both have, below `prefix`. Those of the norms in the layers are Hugging Face's BERT's.
TransformerNames names(const std::string& prefix = "bert");
// The same with those of the other network's norms beside them.
TransformerNames megatron_names(const std::string& prefix = "bert");

// Other names that files may have for what is called `name` below `bert.`.
std::vector<std::string> other_names(const std::string& name);

// Files may leave `bert.` away, as those of the class without heads do, and old ones call a norm's weight gamma and its
// bias beta.
std::unique_ptr<Model> build(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
                             const ModelPart& part);

}  // namespace megalith::bert
