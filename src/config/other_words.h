// Other trainers' words for options of this program: Hugging Face's learning_rate is lr, torchtitan's
// training.seq_len is seq_length. They are read as the option, whose meaning and unit are the same, and one line says
// which. A word whose meaning differs is in dialects/known_names.table, with what to write instead. A word may also
// stand for values of options: Primus's use_sink_attention is softmax_type=learnable, and so may one value of an
// option: position_embedding_type yarn.
//
// Source: Hugging Face transformers TrainingArguments and config.json, torchtune's recipes, torchtitan's job
// configuration, DeepSpeed's JSON, nanoGPT's configuration, TRL's SFTConfig and DPOConfig, PEFT, LLaMA-Factory's and
// axolotl's YAML.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/dialect.h"

namespace megalith {

struct OtherWord {
  std::string_view program;
  std::string_view option;           // ours, the first
  std::vector<std::string> neutral;  // values that ask for nothing, such as max_steps -1
  std::vector<SaidOption> becomes;   // empty: the option takes the word's own value
  std::string_view note;             // what differs here

  // Takes true or false, or nothing, on the command line.
  bool is_switch() const {
    return !becomes.empty() && !neutral.empty() && (neutral[0] == "false" || neutral[0] == "true");
  }
};

// The word (lower case, '_' for '-' and '.'), or nullptr.
const OtherWord* find_other_word(std::string_view name);
// For one value of a name, perhaps an option's: "position_embedding_type:yarn".
const OtherWord* find_other_value(std::string_view name, std::string_view value);
// The option's value for the word's `value`: {} is replaced by it, {1/x^2} by that power of it.
std::string said_value(const SaidOption& said, const std::string& value);

struct OtherWordsRow {
  std::string program;
  std::string option;  // or OPTION=VALUE …
  std::string names;   // separated by blanks; NAME=a|b lists neutral values, NAME:VALUE is one value
  std::vector<SaidOption> becomes;
  std::string note;
};

std::span<const OtherWordsRow> other_words_rows();

}  // namespace megalith
