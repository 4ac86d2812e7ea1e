// The tokenizer that came with a model of --load_hf. Training needs no tokenizer, but whoever reads text with the
// trained model does, so checkpoints remember where it lies.
#pragma once

#include <optional>
#include <string>

#include "config/record.h"

namespace megalith {

struct Resolved;

// The folder of the tokenizer that belongs to the model, where the configuration names none: load_hf's, else the one
// that the loaded checkpoint remembers.
std::optional<std::string> text_tokenizer(const Resolved& resolved);

// What a checkpoint's record says of it, and adding it to a record.
std::optional<std::string> text_tokenizer_of(const Configuration& configuration);
void remember_text_tokenizer(const Resolved& resolved, Configuration& configuration);

}  // namespace megalith
