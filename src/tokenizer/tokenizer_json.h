// Hugging Face's tokenizer.json: added tokens, normalizer, pre_tokenizer, model, post_processor and decoder, read as
// the `tokenizers` library reads them. Here: byte-level BPE (Llama 3, Qwen2.5, GPT-2, DeepSeek); a component that is
// not supported is refused by name.
#pragma once

#include <filesystem>
#include <memory>

#include "tokenizer/tokenizer.h"

namespace megalith {

// path  a tokenizer.json, or a folder that holds one. End-of-document, beginning and padding tokens come from
//       tokenizer_config.json and special_tokens_map.json beside it when they are there, else from the usual names
//       among the special tokens.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

}  // namespace megalith
