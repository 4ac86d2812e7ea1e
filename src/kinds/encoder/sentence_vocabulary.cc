// See sentence_vocabulary.h.
#include "kinds/encoder/sentence_vocabulary.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

std::vector<int64_t> SentenceVocabulary::ordinary_ids() const {
  std::vector<bool> is_special(static_cast<size_t>(size));
  const auto set = [&](int64_t id) {
    if (id >= 0 && id < size) is_special[static_cast<size_t>(id)] = true;
  };
  for (const int64_t id : {pad, cls, sep, mask, bos, eos}) set(id);
  for (const int64_t id : sentinels) set(id);
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < size; ++id) {
    if (!is_special[static_cast<size_t>(id)]) ids.push_back(id);
  }
  return ids;
}

SentenceVocabulary sentence_vocabulary_of(const Tokenizer& tokenizer) {
  const SpecialIds& ids = tokenizer.special_ids();
  const auto of = [](const std::optional<int32_t>& id) { return id ? int64_t{*id} : SentenceVocabulary::kNone; };
  SentenceVocabulary vocabulary{.size = tokenizer.vocab_size(),
                                .pad = ids.pad.value_or(0),
                                .cls = of(ids.cls),
                                .sep = of(ids.sep),
                                .mask = of(ids.mask),
                                .bos = ids.bos.value_or(ids.pad.value_or(0)),
                                .eos = of(ids.eod)};
  vocabulary.sentinels.assign(ids.extra.begin(), ids.extra.end());
  vocabulary.continues_word.resize(static_cast<size_t>(vocabulary.size));
  for (int32_t id = 0; id < vocabulary.size; ++id) {
    vocabulary.continues_word[static_cast<size_t>(id)] = tokenizer.decode(std::span(&id, 1)).starts_with("##");
  }
  return vocabulary;
}

SentenceVocabulary made_up_vocabulary(int64_t size) {
  constexpr int64_t kLeast = 16, kMostSentinels = 100;
  if (size < kLeast) {
    throw UserError(
        fmt::format("mock_data of sentences needs a vocabulary of at least {} ids, and vocab_size is {}", kLeast, size),
        "raise vocab_size");
  }
  SentenceVocabulary vocabulary{.size = size, .pad = 0, .cls = 1, .sep = 2, .mask = 3, .bos = 4, .eos = 5};
  const int64_t first = size - std::min(size / 4, kMostSentinels);
  for (int64_t id = first; id < size; ++id) vocabulary.sentinels.push_back(id);
  return vocabulary;
}

}  // namespace megalith
