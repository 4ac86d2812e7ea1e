#include "kinds/text/dpo.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "device/transfer.h"
#include "kinds/text/sft_batches.h"

namespace megalith {
namespace {

// A row's pairs count once: on the rank with its first token.
bool counts_pairs(const Batch& part) {
  return !part.is_part() || part.row_index(field::kTokens)[0].item<int64_t>() == 0;
}

}  // namespace

std::vector<UserError> Dpo::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors = Sft::check(model, data);
  if (model.num_prediction_modules() > 0) {
    errors.emplace_back(fmt::format("loss {} with mtp_num_layers: prediction modules have no loss of answers", name()),
                        "set mtp_num_layers to 0");
  }
  return errors;
}

std::vector<std::string> Dpo::loss_names() const { return preference_terms(); }

std::vector<double> Dpo::count_weights(const Batch& part) const {
  const double pairs = counts_pairs(part) ? part.at(field::kNumPairs).sum().item<double>() : 0;
  return std::vector<double>(loss_names().size(), pairs);
}

ModelInput Dpo::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = Sft::make_input(part, device, units);
  if (count_units(units, UnitLetter::kHead) > 0) {
    input.preference = PreferenceInput{.reference = sent_to(part.at(field::kReferenceLogProbs), device),
                                       .num_pairs = sent_to(part.at(field::kNumPairs), device),
                                       .beta = beta_};
  }
  // Without a training step's factors.
  input.terms.clear();
  for (std::string& name : loss_names()) input.terms.push_back({.name = std::move(name), .per_weight = {}});
  return input;
}

std::vector<std::string> Kto::loss_names() const { return rating_terms(); }

std::vector<double> Kto::count_weights(const Batch& part) const {
  if (!counts_pairs(part)) return {0, 0, 0, 0};
  const at::Tensor signs = part.at(kRatingSigns);
  const auto good = signs.gt(0).sum().item<double>(), bad = signs.lt(0).sum().item<double>();
  return {good + bad, good, bad, good + bad};
}

ModelInput Kto::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = Dpo::make_input(part, device, units);
  if (!input.preference) return input;
  input.preference->ratings = AnswerRatings{.signs = sent_to(part.at(kRatingSigns), device),
                                            .kl = sent_to(part.at(kKlEstimate), device),
                                            .weight_of_good = weights_.of_good,
                                            .weight_of_bad = weights_.of_bad};
  return input;
}

at::Tensor Dpo::evaluate(const Batch& /*part*/, const ModelOutput& output) const {
  return sums_of_terms(output, loss_names());
}

}  // namespace megalith
