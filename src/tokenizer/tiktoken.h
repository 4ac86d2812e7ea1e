// tiktoken's vocabularies: byte strings in the order of their ranks, cut by a pattern and merged by rank. Three
// formats: lines of base64 and rank (Llama 3's tokenizer.model), Megatron's list of {rank, token_bytes, token_str}, and
// Mistral's tekken.json, which holds such a list, its pattern and its special tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace megalith {

// True if a file's first line is base64 and the rank 0.
bool is_tiktoken_file(const std::filesystem::path& file);
// True if a file is an object with "config" and "vocab" like tekken.json; reads only its beginning.
bool is_tekken_file(const std::filesystem::path& file);

// Llama 3's tokenizer.model: its pattern, with its 256 special tokens after the others. One of 200000 tokens or more is
// Llama 4's. Special tokens in a text become their ids; add_special prepends <|begin_of_text|>.
std::unique_ptr<Tokenizer> load_llama_tiktoken(const std::filesystem::path& file);

// tekken.json: special tokens come first and are not searched in a text; add_special prepends <s>.
std::unique_ptr<Tokenizer> load_tekken(const std::filesystem::path& file);

struct TiktokenOptions {
  std::string pattern = "v2";  // v1 or v2
  int64_t num_special_tokens = 1000;
  std::vector<std::string> special_tokens;  // empty: <unk>, <s>, </s>; filled up with <SPECIAL_3> and so on
  std::optional<int64_t> vocab_size;        // including special tokens; default 131072
};
// Megatron's TikTokenizer: special tokens come first and are not searched in a text.
std::unique_ptr<Tokenizer> load_tiktoken_vocabulary(const std::filesystem::path& file, const TiktokenOptions& options);

}  // namespace megalith
