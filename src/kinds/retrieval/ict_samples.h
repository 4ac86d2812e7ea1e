// The maker of ICT's samples (inverse cloze task): a block of neighbouring sentences of a document, behind its title,
// and one of the sentences as the question that the block answers.
//
//   question  [CLS] sentence [SEP]
//   text      [CLS] title [SEP] block [SEP], without titles [CLS] block [SEP]
//
// Both are cut to the sequence's length and padded. A title that leaves no room for a token of the block is cut, too.
// Which sentence it is, and whether it also stays in the block, RandomState(seed + number of the sample) draws.
// Stanford's Megatron draws from one stream for each data set, in the order of reads, which processes and workers
// change; and outside of the first split it gives documents the titles of others, which is not taken over.
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

// ICT, whose tokens and key_lengths are the text's.
// (b, s) int64, and (b) int64: the question, and how many tokens of it are not padding.
inline constexpr std::string_view kQueryTokens = "query_tokens";
inline constexpr std::string_view kQueryKeyLengths = "query_key_lengths";
// (b, 4) int64: the block's first sentence, one past its last, its document, its number among the blocks.
inline constexpr std::string_view kBlock = "block";

}  // namespace field

struct IctSampleOptions {
  int64_t sequence_length = 0;
  double query_in_block_prob = 0.1;
  bool takes_single_sentences = false;  // use_one_sent_docs
  std::string titles;                   // prefix of token files, a document for each of the data set's; empty: none
};

// UserError for sequences that have no room for a text, and for titles that cannot be opened. Making a data set gives a
// UserError when it has not as many documents as there are titles.
std::shared_ptr<const SampleMaker> make_ict_samples(const IctSampleOptions& options, SentenceVocabulary vocabulary);

}  // namespace megalith
