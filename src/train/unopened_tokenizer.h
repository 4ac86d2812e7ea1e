// Mock data needs no tokenizer, only the size of its vocabulary and the end of a document. Where the model says them,
// or the tokenizer is one whose numbers are known here, a name of the hub is left alone: no network, no token.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megalith {

struct Config;

struct UnopenedVocabulary {
  int64_t vocab_size = 0;
  int64_t eod_id = 0;
  std::string source;  // "the model's configuration", "the published model"
};

// Nothing when the tokenizer must be opened, or none is named: tokens are read from data, samples are written, the name
// is a path here, or nobody knows the size.
std::optional<UnopenedVocabulary> unopened_vocabulary(const Config& config);

struct PublishedVocabulary {
  std::string_view repo;  // on the hub
  int64_t vocab_size;     // rows of the published model's embedding
  int64_t eod_id;
};

// Those of the tokenizers that Primus's model presets name, or nullptr.
const PublishedVocabulary* find_published_vocabulary(std::string_view repo);

}  // namespace megalith
