// The tokenizer that came with a model of --load_hf. Training needs no tokenizer, but whoever reads text with the
// trained model does, so checkpoints remember where it lies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/record.h"

namespace megalith {

class Tokenizer;
struct Config;
struct Resolved;

// The folder of the tokenizer that belongs to the model, where the configuration names none: load_hf's, else the one
// that the loaded checkpoint remembers.
std::optional<std::string> text_tokenizer(const Resolved& resolved);

// What a checkpoint's record says of it, and adding it to a record.
std::optional<std::string> text_tokenizer_of(const Configuration& configuration);
void remember_text_tokenizer(const Resolved& resolved, Configuration& configuration);

// What tells of a vocabulary with many ids that the tokenizer has no token for. Nothing where padding and the round
// sizes of published models explain them.
std::optional<std::string> note_of_missing_tokens(const Tokenizer& tokenizer, const Config& config, int64_t vocab_size);

}  // namespace megalith
