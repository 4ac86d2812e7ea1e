// Other trainers' words for options of this program: Hugging Face's learning_rate is lr, torchtitan's
// training.seq_len is seq_length. They are read as the option, whose meaning and unit are the same, and one line says
// which. A word whose meaning differs stands in dialects/known_names.table, with what to write instead.
//
// Source: Hugging Face transformers TrainingArguments and config.json, torchtune's recipes, torchtitan's job
// configuration, DeepSpeed's JSON, nanoGPT's configuration, TRL's SFTConfig and DPOConfig, PEFT, LLaMA-Factory's
// and axolotl's YAML.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct OtherWord {
  std::string_view program;          // whose word it is
  std::string_view option;           // ours
  std::vector<std::string> neutral;  // values that ask for nothing, such as max_steps -1
};

// The word in lower case with '_' for '-' and '.', or nullptr.
const OtherWord* find_other_word(std::string_view name);

// A value of an option as other trainers write it: adamw_bnb_8bit is optimizer adam8bit.
struct OtherValue {
  std::string value;  // ours
  std::string note;   // what differs here; empty: nothing
};

const OtherValue* find_other_value(std::string_view option, std::string_view written);

struct OtherValuesRow {
  std::string option;
  OtherValue value;
  std::string names;  // apart by blanks
};

std::span<const OtherValuesRow> other_values_rows();

struct OtherWordsRow {
  std::string program;
  std::string option;
  std::string names;  // apart by blanks; NAME=a|b lists the values that ask for nothing
};

std::span<const OtherWordsRow> other_words_rows();

}  // namespace megalith
