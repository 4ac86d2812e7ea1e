// A vocabulary as data sets of sentences need it: special ids, and pieces that continue a word.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

class Tokenizer;

struct SentenceVocabulary {
  static constexpr int64_t kNone = -1;  // no token: the tokenizer has none of this kind

  int64_t size = 0;                           // a random token is one of 0 … size - 1
  int64_t pad = 0;                            // fills rows; ignored
  int64_t cls = kNone, sep = kNone;           // frame BERT's segments
  int64_t mask = kNone;                       // masks a token
  int64_t bos = kNone, eos = kNone;           // begin and end the decoder's input and output (T5)
  std::vector<int64_t> sentinels = {};        // T5's <extra_id_0>, <extra_id_1>, …
  std::vector<bool> continues_word = {};      // by id: a piece such as "##ing"; empty: none does
  std::vector<int64_t> ordinary_ids() const;  // all others
  bool is_continuation(int64_t id) const {    // id below size
    return !continues_word.empty() && continues_word[static_cast<size_t>(id)];
  }
};

// Pieces beginning with "##" continue a word. Without a token that begins texts (T5's tokenizer), bos is padding, with
// which T5's decoders begin.
SentenceVocabulary sentence_vocabulary_of(const Tokenizer& tokenizer);

// For mock data without a tokenizer: 0 is padding; 1 to 5 are cls, sep, mask, bos and eos; the last quarter of the ids,
// at most 100, are sentinels. UserError for fewer than 16 ids.
SentenceVocabulary made_up_vocabulary(int64_t size);

}  // namespace megalith
