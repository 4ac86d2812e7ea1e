// Mock data needs only a vocabulary's size and end-of-document id. If the model or a table of known tokenizers has
// them, a hub name is not fetched: no network, no token.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megalith {

struct Resolved;

struct UnopenedVocabulary {
  int64_t vocab_size = 0;
  int64_t eod_id = 0;
  std::string source;  // "the model's configuration", "the published model"
};

// Nothing if the tokenizer must be opened (for data or samples, or its size is unknown), is local, or is not named.
std::optional<UnopenedVocabulary> unopened_vocabulary(const Resolved& resolved);

struct PublishedVocabulary {
  std::string_view repo;  // on the hub
  int64_t vocab_size;     // rows of the published embedding
  int64_t eod_id;
};

// The tokenizers of our presets' models and of Primus's; nullptr for others.
const PublishedVocabulary* find_published_vocabulary(std::string_view repo);

}  // namespace megalith
