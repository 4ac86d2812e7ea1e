#include "kinds/seq2seq/t5.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "device/transfer.h"
#include "kinds/encoder/masked_samples.h"
#include "models/encoder_decoder.h"
#include "models/families.h"

namespace megalith {
namespace {

// A decoder that attends to an encoder's output.
bool has_memory(const ModelConfig& model) {
  return std::ranges::any_of(
      model_units(model), [](const Unit& unit) { return std::ranges::find(unit.gives, kMemory) != unit.gives.end(); });
}

// The encoder's embedding table, and the decoder's, which may be on a later stage and has no letter of its own.
bool reads_tokens(std::span<const Unit> units) {
  return std::ranges::any_of(units, [](const Unit& unit) {
    return unit.letter == UnitLetter::kEmbedding || unit.kind.find("embedding") != std::string::npos;
  });
}

UserError no_decoder_length() {
  return UserError("task t5 needs decoder_seq_length",
                   "give --decoder_seq_length, such as 128 for a seq_length of 512");
}

}  // namespace

T5Task::T5Task(const TaskOptions& options, const TaskSetup& setup) : SentenceTask(options, setup, "t5") {}

std::vector<UserError> T5Task::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors = SentenceTask::check(model, data);
  if (!has_memory(model)) {
    errors.emplace_back("task t5 needs a model of an encoder and a decoder, and this one is a single stack",
                        "take a model of T5's kind, or another task");
  }
  if (!options_.decoder_seq_length && (data.mock_data || data.has_paths())) {
    errors.push_back(no_decoder_length());
  }
  const int64_t longest = model.max_position_embeddings;
  // Relative positions are unbounded.
  const bool is_bounded = longest > 0 && model.position_embedding() != PositionEmbedding::kRelative;
  if (is_bounded && options_.decoder_seq_length.value_or(0) > longest) {
    errors.emplace_back(fmt::format("decoder_seq_length {} is larger than max_position_embeddings {}",
                                    *options_.decoder_seq_length, longest),
                        "lower decoder_seq_length or raise max_position_embeddings");
  }
  return errors;
}

void T5Task::draw(Batch& rows) const {
  if (rows.has(field::kEncoderTokens)) return;
  draw_second_text(rows, field::kEncoderTokens, field::kEncoderKeyLengths);
}

ModelInput T5Task::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = SentenceTask::make_input(part, device, units);
  if (reads_tokens(units)) {
    input.tokens = sent_to(part.at(field::kTokens), device);
    input.more.set(input::kEncoderTokens.name, sent_to(part.at(field::kEncoderTokens), device));
  }
  input.more.set(input::kEncoderKeyLengths.name, sent_to(part.at(field::kEncoderKeyLengths), device));
  const PairRowIds ids = pair_row_ids(part, field::kEncoderTokens, field::kTokens, device);
  input.more.set(input::kEncoderRowIds.name, ids.first);
  input.context.row_ids = ids.second;
  input.context.encoder_s = part.row_length(field::kEncoderTokens);
  return input;
}

std::vector<NeededToken> T5Task::needed_tokens(const SpecialIds& ids) const {
  return {{"sentinels (<extra_id_0>, <extra_id_1>, …)", !ids.extra.empty()},
          {"a token that ends a text", ids.eod.has_value()}};
}

std::shared_ptr<const SampleMaker> T5Task::make_samples(int64_t sequence_length, SentenceVocabulary vocabulary) const {
  if (!options_.decoder_seq_length) throw no_decoder_length();
  return make_t5_samples({.sequence_length = sequence_length,
                          .mask_prob = options_.mask_prob,
                          .short_seq_prob = options_.short_seq_prob,
                          .decoder_seq_length = *options_.decoder_seq_length},
                         std::move(vocabulary));
}

}  // namespace megalith
