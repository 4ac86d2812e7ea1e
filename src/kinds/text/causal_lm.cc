// See causal_lm.h.
#include "kinds/text/causal_lm.h"

#include <fmt/format.h>

#include "device/transfer.h"
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

std::vector<std::string> CausalLm::measured_names() const {
  std::vector<std::string> names;
  for (const std::string& name : set_names_) names.push_back(fmt::format("train-{} loss", name));
  return names;
}

ModelInput CausalLm::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = TextTask::make_input(part, device, units);
  const bool has_sets = !set_names_.empty() && part.has(field::kSetIds) && count_units(units, UnitLetter::kHead) > 0;
  if (has_sets) input.sets = SetInput{.ids = sent_to(part.at(field::kSetIds), device), .names = measured_names()};
  return input;
}

DataSets Sft::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  return make_sft_sets(options, setup, log);
}

}  // namespace megalith
