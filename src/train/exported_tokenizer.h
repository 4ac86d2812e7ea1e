// What an exported model needs of its tokenizer: the files, and in config.json and generation_config.json the tokens
// that begin, end and pad a text. Without these, transformers writes over every end.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/hf.h"
#include "config/record.h"
#include "core/log.h"
#include "models/model_config.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// Which files are copied: those that options name, else those of a folder that belongs to the model.
void choose_tokenizer_files(const TokenizerOptions& named, const std::optional<std::string>& beside_model,
                            HfExport& settings);

// Adds the tokenizer's end to those that the model stops at (as find_stop_ids() has them), its beginning where the
// model has none, and its padding. Tokens that the vocabulary lacks, and those of models that write no text, are left
// out.
void add_special_tokens(const Tokenizer* tokenizer, ModelConfig& model, HfExport& settings);

// The options of the tokenizer that a checkpoint's record names; none are set where it names none.
TokenizerOptions recorded_tokenizer(const Configuration& configuration);

// The tokenizer of a model: the one that options name, else that of the folder, else bytes where the vocabulary is
// theirs. One that cannot be opened costs a note and the tokens that it would have told.
std::unique_ptr<Tokenizer> open_tokenizer(TokenizerOptions named, const std::optional<std::string>& beside_model,
                                          const ModelConfig& model, Logger& log);

}  // namespace megalith
