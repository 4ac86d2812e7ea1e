// Vocabularies of the first releases of GPT-2 and BERT: a file of tokens and, for GPT-2, one of merges.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "core/json.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// Megatron's GPT2BPETokenizer: vocab.json and merges.txt. <|endoftext|> ends a document; in a text it is plain text.
std::unique_ptr<Tokenizer> load_gpt2_files(const std::filesystem::path& vocab_file,
                                           const std::filesystem::path& merge_file);

// The tokenizer that transformers' AutoTokenizer makes of a folder with vocab.json and merges.txt but no
// tokenizer.json, if its class is GPT2Tokenizer, Qwen2Tokenizer or CLIPTokenizer: by tokenizer_class in
// tokenizer_config.json or config.json, else by config.json's model_type. UserError for any other class, or none.
// Source: transformers/convert_slow_tokenizer.py, GPT2Converter, Qwen2Converter, CLIPConverter.
std::unique_ptr<Tokenizer> load_byte_level_folder(const std::filesystem::path& folder);

// Megatron's BertWordPiece tokenizers: vocab.txt, a token a line. [BOS] and [EOS] are added after it, then
// num_extra_ids tokens <extra_id_0> and so on; [EOS] ends a document. add_special puts [CLS] and [SEP] around a text.
std::unique_ptr<Tokenizer> load_bert_vocabulary(const std::filesystem::path& vocab_file, bool lower_case,
                                                int64_t num_extra_ids);
// The same as a tokenizer.json.
Json bert_tokenizer_json(const std::filesystem::path& vocab_file, bool lower_case, int64_t num_extra_ids);

}  // namespace megalith
