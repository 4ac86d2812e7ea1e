// Hugging Face folders of sentence-transformers: beside the model they say how its states become one vector of a text.
//
//   modules.json               the steps: the model, pooling, perhaps a normalisation
//   1_Pooling/config.json      which pooling
//   sentence_bert_config.json  how many tokens of a text are read
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace megalith {

// How the states of a text's tokens become one vector.
enum class Pooling {
  kCls,     // the first token's
  kMean,    // the mean over all tokens that are no padding
  kLast,    // the last token's that is no padding
  kPooler,  // a BERT's pooler, of the first token
};

struct SentenceFolder {
  std::optional<Pooling> pooling;  // unset: a form that there is none of here
  std::string other_form;          // what that is: "pooling_mode_max_tokens", or a module; empty: none
  bool normalises = false;         // to length 1
  std::optional<int64_t> max_seq_length;
};

// Nothing where the folder has no modules.json. UserError for files that cannot be read.
std::optional<SentenceFolder> read_sentence_folder(const std::filesystem::path& folder);

}  // namespace megalith
