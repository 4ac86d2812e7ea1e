// The tokenizer of a model in --load_hf: unused in training, but recorded in checkpoints for the trained model's users.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/record.h"

namespace megalith {

class Tokenizer;
struct Config;
struct Resolved;

// The folder of the model's tokenizer if the configuration names none: load_hf's, else the loaded checkpoint's.
std::optional<std::string> text_tokenizer(const Resolved& resolved);

// Reads it from, and adds it to, a checkpoint's record.
std::optional<std::string> text_tokenizer_of(const Configuration& configuration);
void remember_text_tokenizer(const Resolved& resolved, Configuration& configuration);
// Makes the record's paths of tokenizers absolute, so that the checkpoint can be read from another folder.
void keep_tokenizer_paths(Configuration& configuration);

// A note on a vocabulary with many ids that the tokenizer lacks, unless padding and the round sizes of published models
// explain them.
std::optional<std::string> note_of_missing_tokens(const Tokenizer& tokenizer, const Config& config, int64_t vocab_size);

}  // namespace megalith
