// See causal_lm.h.
#include "kinds/text/causal_lm.h"

#include "kinds/text/sft_batches.h"

namespace megalith {

std::vector<UserError> CausalLm::check(const ModelConfig& model, const DataOptions& /*data*/) const {
  if (model.is_causal()) return {};
  if (model.model_type == ModelType::kBert) {
    return {UserError("task causal_lm with model_type bert, whose tokens see those that they are to predict",
                      "set task to masked_lm")};
  }
  if (model.model_type == ModelType::kBiencoder) {
    return {UserError("task causal_lm with model_type biencoder, which predicts no tokens", "set task to ict")};
  }
  return {UserError("task causal_lm with is_causal false: every token would see the one that it is to predict",
                    "set is_causal to true, or task to masked_lm")};
}

DataSets Sft::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  return make_sft_sets(options, setup, log);
}

}  // namespace megalith
