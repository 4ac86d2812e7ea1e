// Shared by the two networks called BERT (post-norm, pre-norm): config.json, names, building.
#pragma once

#include <string>
#include <vector>

#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/transformer_names.h"

namespace megalith::bert {

// Shared keys. masked_class has no sentence classifier.
HfRows rows(const std::string& hf_class, const std::string& masked_class);

// Shared names, below `prefix`. Layer norms are named as in Hugging Face's BERT.
TransformerNames names(const std::string& prefix = "bert");
// Likewise, with the norms of Megatron-LM's network.
TransformerNames megatron_names(const std::string& prefix = "bert");

// Names under which files may have `name` below `bert.`.
std::vector<std::string> other_names(const std::string& name);

// Files of the class without heads leave `bert.` out; old ones call a norm's weight gamma and its bias beta.
std::unique_ptr<Model> build(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
                             const ModelPart& part);

}  // namespace megalith::bert
