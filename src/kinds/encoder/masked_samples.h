// Sample makers of BERT and T5, bit-identical to Megatron's: choice of sentences and masking.
//
// RandomState(seed + number) draws each sample, so it depends only on its number.
// Source: megatron/core/datasets/bert_dataset.py, t5_dataset.py.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "data/sample_maker.h"
#include "kinds/encoder/sentence_vocabulary.h"

namespace megalith {

namespace field {

// BERT. (b, s) int64: 0 for [CLS], the first segment and its [SEP], 1 for the second; 0 for padding.
inline constexpr std::string_view kTokenTypes = "token_types";
// (b) int64: 1 if the two segments were swapped. (Megatron calls it is_random.)
inline constexpr std::string_view kSentenceLabels = "sentence_labels";

// T5, whose tokens, labels, loss_weights and key_lengths are the decoder's. (b, S) int64 and (b) int64: the encoder's
// tokens, and how many of them are not padding.
inline constexpr std::string_view kEncoderTokens = "encoder_tokens";
inline constexpr std::string_view kEncoderKeyLengths = "encoder_key_lengths";

// (b) int64: 1 if the sample's sentences were truncated.
inline constexpr std::string_view kTruncated = "truncated";

}  // namespace field

struct MaskedSampleOptions {
  int64_t sequence_length = 0;  // of T5's encoder
  double mask_prob = 0.15, short_seq_prob = 0.1;
  bool has_sentence_head = true;   // BERT: two segments, in order or swapped
  int64_t decoder_seq_length = 0;  // T5
};

// Labels are 0 where loss_weights are (Megatron: -1). UserError for sequences too short for any text.
std::shared_ptr<const SampleMaker> make_bert_samples(const MaskedSampleOptions& options, SentenceVocabulary vocabulary);
std::shared_ptr<const SampleMaker> make_t5_samples(const MaskedSampleOptions& options, SentenceVocabulary vocabulary);

}  // namespace megalith
