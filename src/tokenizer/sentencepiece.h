// SentencePiece models (Kudo and Richardson 2018, arXiv:1808.06226): Unigram, byte-pair encoding, characters and words.
// Ids and text as in the `sentencepiece` library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

enum class SentencePieceKind {
  kLlama2,    // Llama2Tokenizer: the pieces; add_special prepends <s>
  kGpt,       // GPTSentencePieceTokenizer: the pieces
  kMegatron,  // SentencePieceTokenizer: adds <CLS>, <SEP>, <EOD>, <MASK> and, if missing, <PAD>, <BOS> and <EOS>, and
              // finds them in a text
};

// num_extra_ids  tokens <extra_id_0>, … also added by kMegatron
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file, SentencePieceKind kind,
                                              int64_t num_extra_ids = 0);

}  // namespace megalith
