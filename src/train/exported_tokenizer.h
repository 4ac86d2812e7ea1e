// An exported model's other files: the tokenizer's; begin, end and pad tokens in config.json and
// generation_config.json, without which transformers generates past every end; what other programs need.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf.h"
#include "checkpoint/kept_tokenizer.h"
#include "config/record.h"
#include "core/log.h"
#include "models/model_config.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

struct Resolved;

// The files to copy: the options', else those in the model's folder.
void choose_tokenizer_files(const TokenizerOptions& named, const std::optional<std::string>& beside_model,
                            HfExport& settings);

// The run's tokenizer, for its checkpoints; read now, since an earlier checkpoint that has it may be removed.
std::vector<KeptFile> kept_files(const Resolved& resolved);

// Adds the tokenizer's end to the model's stop tokens (as in find_stop_ids()), its beginning if the model has none, and
// its padding. Omits tokens outside the vocabulary, and those of models that write no text.
void add_special_tokens(const Tokenizer* tokenizer, ModelConfig& model, HfExport& settings);

// The tokenizer options in a checkpoint's record, if any.
TokenizerOptions recorded_tokenizer(const Configuration& configuration);

// A model's tokenizer: the options', else the folder's, else bytes if the vocabulary fits. If it cannot be opened: a
// note, no special tokens.
std::unique_ptr<Tokenizer> open_tokenizer(TokenizerOptions named, const std::optional<std::string>& beside_model,
                                          const ModelConfig& model, Logger& log);

// A model's name: its folder's, or the repository's where the folder is a hub cache's snapshot, which is named after a
// commit.
std::string model_name(const std::string& source);

// Adds what is missing to a folder of save_hf():
//   tokenizer.json, tokenizer_config.json   of a BERT's vocab.txt; the class of GPT-2's files
//   modules.json and what it names          sentence-transformers' steps of the loaded model
//   generation_config.json                  the loaded model's other settings
//   README.md                               a model card
// source: the folder of the loaded model, if any. By one rank.
void complete_export(const std::filesystem::path& folder, const TokenizerOptions& tokenizer,
                     const std::optional<std::string>& source);

}  // namespace megalith
