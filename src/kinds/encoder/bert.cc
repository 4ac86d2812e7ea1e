#include "kinds/encoder/bert.h"

#include <ATen/ATen.h>

#include "device/transfer.h"
#include "kinds/encoder/drawn_segments.h"
#include "kinds/encoder/masked_samples.h"
#include "models/transformer.h"

namespace megalith {
namespace {

constexpr const char* kSentenceLoss = "sop loss";

// A row's sentence label counts once: on the rank with its first token, which the sentence head reads.
bool has_first_token(const Batch& part) { return part.row_index(field::kTokens)[0].item<int64_t>() == 0; }

}  // namespace

BertTask::BertTask(const TaskOptions& options, const TaskSetup& setup)
    : SentenceTask(options, setup, "bert"), has_sentence_head_(setup.has_sentence_head) {}

std::vector<UserError> BertTask::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors = SentenceTask::check(model, data);
  if (model.is_causal()) {
    errors.emplace_back("task bert needs attention to both sides, and is_causal is true",
                        "set model_type to bert, or is_causal to false");
  }
  return errors;
}

void BertTask::draw(Batch& rows) const {
  if (rows.has(field::kTokenTypes)) return;
  const DrawnSegments drawn = draw_segments(rows, key_, /*num_labels=*/2);
  const at::Tensor position = at::arange(rows.length(field::kTokens), at::kLong);
  const at::Tensor is_padding = position.unsqueeze(0).ge(drawn.lengths.unsqueeze(1));
  rows.set(field::kLossWeights, rows.at(field::kLossWeights).masked_fill(is_padding, 0));
  rows.set(BatchField::of_tokens(field::kTokenTypes, drawn.types));
  rows.set(BatchField::of_rows(field::kKeyLengths, drawn.lengths));
  rows.set(BatchField::of_rows(field::kSentenceLabels, drawn.labels));
}

std::vector<std::string> BertTask::loss_names() const {
  std::vector<std::string> names = SentenceTask::loss_names();
  if (has_sentence_head_) names.emplace_back(kSentenceLoss);
  return names;
}

std::vector<double> BertTask::count_weights(const Batch& part) const {
  std::vector<double> weights = SentenceTask::count_weights(part);
  if (has_sentence_head_) weights.push_back(has_first_token(part) ? static_cast<double>(part.num_rows()) : 0.0);
  return weights;
}

ModelInput BertTask::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = SentenceTask::make_input(part, device, units);
  if (count_units(units, UnitLetter::kEmbedding) > 0) {
    input.more.set(input::kTokenTypes.name, sent_to(part.at(field::kTokenTypes), device));
  }
  if (has_sentence_head_ && count_units(units, UnitLetter::kHead) > 0) {
    input.more.set(input::kSentenceLabels.name, sent_to(part.at(field::kSentenceLabels), device));
  }
  // Without a training step's factors.
  input.terms.clear();
  for (std::string& name : loss_names()) input.terms.push_back({.name = std::move(name), .per_weight = {}});
  return input;
}

std::vector<std::string> BertTask::measured_names() const {
  if (!has_sentence_head_) return {};
  return {kSentenceAccuracy};
}

std::vector<std::string> BertTask::evaluated_names() const {
  std::vector<std::string> names = loss_names();
  for (std::string& name : measured_names()) names.push_back(std::move(name));
  return names;
}

HeadOutput BertTask::evaluated_output() const {
  // Only the loss output has the sentence head's terms.
  return has_sentence_head_ ? HeadOutput::kLoss : HeadOutput::kTokenLosses;
}

at::Tensor BertTask::evaluate(const Batch& part, const ModelOutput& output) const {
  const at::Tensor texts = SentenceTask::evaluate(part, output);
  return has_sentence_head_ ? at::cat({texts, sums_of_terms(output, {kSentenceLoss, kSentenceAccuracy})}) : texts;
}

std::vector<NeededToken> BertTask::needed_tokens(const SpecialIds& ids) const {
  return {{"[CLS]", ids.cls.has_value()}, {"[SEP]", ids.sep.has_value()}, {"[MASK]", ids.mask.has_value()}};
}

std::shared_ptr<const SampleMaker> BertTask::make_samples(int64_t sequence_length,
                                                          SentenceVocabulary vocabulary) const {
  return make_bert_samples({.sequence_length = sequence_length,
                            .mask_prob = options_.mask_prob,
                            .short_seq_prob = options_.short_seq_prob,
                            .has_sentence_head = has_sentence_head_},
                           std::move(vocabulary));
}

}  // namespace megalith
