// Which sentences make the samples of BERT, T5 and ICT. Documents are walked epoch by epoch; sentences are added up
// until they reach a target length; the samples are shuffled at the end. The rows are Megatron's to the bit.
//
// Documents with too few sentences are passed over, and so are those of several sentences of which one has more than
// 512 tokens. A document's last sentence does not become a sample by itself. Source: megatron/core/datasets/helpers.cpp
// (build_mapping), and for ICT its build_blocks_mapping.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/index_array.h"

namespace megalith {

inline constexpr int32_t kLongSentence = 512;  // tokens; a longer one takes its document out

// The sentences of some neighbouring documents.
struct DocumentSentences {
  std::span<const int64_t> begins;   // (documents + 1): number of the first sentence of each, and the end
  std::span<const int32_t> lengths;  // in tokens; of sentence begins[0] first
};

struct MappingOptions {
  int64_t max_length = 0;              // tokens that a sample has room for, without special ones; at least 2
  int64_t min_sentences = 1;           // of a sample
  std::optional<int64_t> num_samples;  // as many at least: epochs are not broken off; nothing: one epoch
  uint32_t seed = 1234;
  bool has_wide_numbers = false;  // rows are int64 instead of uint32
};

// Whether a document of one sentence is taken though it has more than 512 tokens.
enum class LongSingle { kTaken, kLeftOut };

// Documents of one epoch that give no sample.
struct LeftOut {
  int64_t too_few_sentences = 0;  // among them those without any
  int64_t long_sentence = 0;
};
LeftOut count_left_out(const DocumentSentences& documents, int64_t min_sentences,
                       LongSingle long_single = LongSingle::kTaken);

// Rows (first sentence, one past the last, target length). The target is max_length; a share short_seq_prob of the
// samples has one drawn from 2 … max_length. Empty when no document gives a sample.
IndexArray build_sentence_mapping(const DocumentSentences& documents, double short_seq_prob,
                                  const MappingOptions& options);

// ICT's blocks: rows (first sentence, one past the last, number of the document, number of the block in its epoch). A
// block's target is max_length less its document's title; it ends there when min_sentences are left behind it.
// title_lengths  in tokens, of each document; empty: none has a title
// first_document  number of the first of the documents in its files
IndexArray build_block_mapping(const DocumentSentences& documents, std::span<const int32_t> title_lengths,
                               int64_t first_document, const MappingOptions& options);

}  // namespace megalith
