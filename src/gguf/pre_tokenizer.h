// llama.cpp's name for how a byte-level tokenizer cuts texts ("tokenizer.ggml.pre").
#pragma once

#include <string>

#include "core/json.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// By the ids of a text in which most tokenizers differ, as llama.cpp's converter does; else by the cuts in
// tokenizer.json, which know trained ones too. UserError for cuts that llama.cpp does not have.
std::string gguf_pre_tokenizer(const Tokenizer& tokenizer, const Json& tokenizer_json, const std::string& where);

}  // namespace megalith
