// Reads the files of axolotl, LLaMA-Factory and TRL, and TRL's flags, as our configuration.
//
// Unset keys have their trainer's defaults. config/dialects/{axolotl,llamafactory,trl}.table bring the keys to names of
// Hugging Face's Trainer, and finetuner_rules.table says what these become. Keys without a row are read as options, or
// as other programs' words. Sources: the tables' first lines.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/option_value.h"
#include "config/yaml_config.h"

namespace megalith {

struct Finetuner;

// Keys and values of a command line.
using FinetunerWords = std::vector<std::pair<std::string, WrittenValue>>;

// By an entry's name, "trl_dpo"; InternalError for another.
const Finetuner* find_finetuner(std::string_view name);
// By the keys of a YAML file; null if it is none of theirs.
const Finetuner* finetuner_of(const std::filesystem::path& file);

// Takes KEY=VALUE, and with has_flags --KEY VALUE …, of the trainer's keys from the arguments.
FinetunerWords take_finetuner_words(std::vector<std::string>& arguments, const Finetuner& tuner, bool has_flags);

// As read_config_file(): problems are in `errors`.
ConfigFile read_finetuner_file(const Finetuner& tuner, const std::filesystem::path& file, const FinetunerWords& words,
                               const std::filesystem::path& config_root, const EnvironmentMap& environment);

}  // namespace megalith
