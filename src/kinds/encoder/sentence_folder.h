// sentence-transformers folders, which describe how a model's states become one vector per text:
//
//   modules.json               the steps: model, pooling, optional normalisation
//   1_Pooling/config.json      the kind of pooling
//   sentence_bert_config.json  the maximum tokens of a text
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace megalith {

enum class Pooling {
  kCls,     // the first token's
  kMean,    // the mean over non-padding tokens
  kLast,    // the last non-padding token's
  kPooler,  // a BERT's pooler, of the first token
};

struct SentenceFolder {
  std::optional<Pooling> pooling;  // unset: unsupported
  std::string other_form;          // its name, "pooling_mode_max_tokens" or a module; empty: none
  bool normalises = false;         // to length 1
  std::optional<int64_t> max_seq_length;
};

// Nothing without modules.json. UserError for unreadable files.
std::optional<SentenceFolder> read_sentence_folder(const std::filesystem::path& folder);

}  // namespace megalith
