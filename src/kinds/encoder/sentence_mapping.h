// Maps sentences to samples of BERT, T5 and ICT, bit-identical to Megatron: walks documents epoch by epoch, collects
// sentences up to a target length, and shuffles the samples at the end.
//
// Skips documents with too few sentences, and those of several sentences with one above 512 tokens. A document's last
// sentence is not a sample by itself. Source: megatron/core/datasets/helpers.cpp (build_mapping; for ICT
// build_blocks_mapping).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/index_array.h"

namespace megalith {

inline constexpr int32_t kLongSentence = 512;  // tokens; a longer sentence excludes its document

// The sentences of consecutive documents.
struct DocumentSentences {
  std::span<const int64_t> begins;   // (documents + 1): index of each one's first sentence, and the end
  std::span<const int32_t> lengths;  // in tokens, from sentence begins[0] on
};

struct MappingOptions {
  int64_t max_length = 0;              // tokens of a sample, without special ones; at least 2
  int64_t min_sentences = 1;           // of a sample
  std::optional<int64_t> num_samples;  // at least as many: epochs are not broken off; nothing: one epoch
  uint32_t seed = 1234;
  bool has_wide_numbers = false;  // rows are int64 instead of uint32
};

// For a document of one sentence with more than 512 tokens.
enum class LongSingle { kTaken, kLeftOut };

// Documents of one epoch that yield no sample.
struct LeftOut {
  int64_t too_few_sentences = 0;  // including those without any
  int64_t long_sentence = 0;
};
LeftOut count_left_out(const DocumentSentences& documents, int64_t min_sentences,
                       LongSingle long_single = LongSingle::kTaken);

// Rows (first sentence, one past the last, target length). The target is max_length, or for a share short_seq_prob of
// the samples drawn from 2 … max_length. Empty if no document yields a sample.
IndexArray build_sentence_mapping(const DocumentSentences& documents, double short_seq_prob,
                                  const MappingOptions& options);

// ICT's blocks: rows (first sentence, one past the last, document number, block number in its epoch). A block's target
// is max_length minus its document's title; it may end there only if min_sentences are left after it.
// title_lengths  in tokens, per document; empty: no titles
// first_document  number of the first document in its files
IndexArray build_block_mapping(const DocumentSentences& documents, std::span<const int32_t> title_lengths,
                               int64_t first_document, const MappingOptions& options);

}  // namespace megalith
