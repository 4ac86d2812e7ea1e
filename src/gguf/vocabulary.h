// A tokenizer as GGUF's keys: tokens, scores, types, merges, special ids, chat template.
#pragma once

#include <filesystem>
#include <optional>

#include "core/json.h"
#include "gguf/architectures.h"
#include "gguf/gguf_file.h"

namespace megalith {

// A tokenizer's files. tokenizer.json counts before vocab.json and merges.txt.
struct GgufTokenizerFiles {
  std::filesystem::path folder;  // of tokenizer_config.json, chat templates; empty: they are not read
  std::optional<std::filesystem::path> json, sentencepiece, vocab, merges;

  // path  a folder or one of its files
  static GgufTokenizerFiles find(const std::filesystem::path& path);

  // tokenizer_config.json; null without one.
  Json config() const;
};

// config: the model's config.json, for vocab_size and special ids. UserError if the files cannot be read or are of a
// kind that llama.cpp has not, or if tokenizer.json has ids outside vocab_size.
void set_gguf_vocabulary(const GgufArchitecture& architecture, const GgufTokenizerFiles& files, const Json& config,
                         GgufKeys& keys);

}  // namespace megalith
