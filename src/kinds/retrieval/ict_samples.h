// Samples of ICT (inverse cloze task): a block of consecutive sentences of a document, after its title, and one of the
// sentences as the question that the block answers.
//
//   question  [CLS] sentence [SEP]
//   text      [CLS] title [SEP] block [SEP], without titles [CLS] block [SEP]
//
// Both are cut to the sequence's length and padded; a title, too, if it leaves no room for a token of the block.
// RandomState(seed + sample number) draws the sentence, and whether it also stays in the block. Stanford's Megatron
// instead draws from one stream per data set, in the order of reads, which processes and workers change; and outside
// the first split it gives documents the titles of others.
// Source: Lee et al. 2019, arXiv:1906.00300, §4; megatron/data/ict_dataset.py.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample_maker.h"
#include "kinds/encoder/sentence_vocabulary.h"

namespace megalith {

namespace field {

// ICT, whose tokens and key_lengths are the text's. (b, s) int64 and (b) int64: the question, and how many of its
// tokens are not padding.
inline constexpr std::string_view kQueryTokens = "query_tokens";
inline constexpr std::string_view kQueryKeyLengths = "query_key_lengths";
// (b, 4) int64: the block's first sentence, one past its last, its document, its number among the blocks.
inline constexpr std::string_view kBlock = "block";

}  // namespace field

struct IctSampleOptions {
  int64_t sequence_length = 0;
  double query_in_block_prob = 0.1;
  bool takes_single_sentences = false;  // use_one_sent_docs
  std::string titles;                   // prefix of token files, with a title per document of the data set; empty: none
};

// UserError for sequences too short for any text, and for titles that cannot be opened. Making a data set throws
// UserError unless it has as many documents as there are titles.
std::shared_ptr<const SampleMaker> make_ict_samples(const IctSampleOptions& options, SentenceVocabulary vocabulary);

}  // namespace megalith
