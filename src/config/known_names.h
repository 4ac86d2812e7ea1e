// Names that users of Megatron-LM, Primus and Transformer Engine have in their commands and configurations, but that
// are not options of this program. Each is recognised. Either it has no effect here (one line says why), or it is not
// supported (an error, unless its value asks for nothing), or upstream renamed it (an error that gives the new name).
// An option of the program always beats this table, so whoever declares the option need not delete its row.
//
// A name may be without effect only when it changes neither results, nor what decides whether a run fits into memory,
// nor whether it runs. docs/accepted_names.md is printed from the table.
//
// Source: Megatron-LM megatron/training/arguments.py (core_r0.14.0), Primus primus/configs/**/*.yaml,
// ROCm/Megatron-LM examples/**/*.sh.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "config/other_words.h"
#include "config/setting.h"
#include "core/error.h"

namespace megalith {

struct KnownName {
  enum class Kind {
    kNoEffect,     // nothing to do: `text` says why
    kUnsupported,  // would change results: an error unless the value is neutral; `text` says what it belongs to
    kRemoved,      // upstream removed it: `text` says what to write instead
  };
  Kind kind = Kind::kNoEffect;
  std::string text;
  // Takes true or false, or nothing, on the command line; any other takes values.
  bool is_switch = false;
  std::vector<std::string> neutral;  // values that ask for nothing; null always does
};

// The entry for a name, or for the family of an environment variable (NVTE_…, NCCL_…), or nullptr.
const KnownName* find_known_name(std::string_view name);

// Whether a value asks for nothing: null, or one of the neutral ones (false = no = 0, 1 = 1.0).
bool is_neutral(const std::vector<std::string>& neutral, const WrittenValue& value);
inline bool is_neutral(const KnownName& known, const WrittenValue& value) { return is_neutral(known.neutral, value); }

// What a written name stands for.
struct NameMatch {
  Option* option = nullptr;  // at most one of the two
  const KnownName* known = nullptr;
  bool is_negated = false;          // written no_NAME where only NAME is known, or an opposite
  std::string name = {};            // the name that matched
  const OtherWord* word = nullptr;  // set when the option was found by another program's word for it

  explicit operator bool() const { return option || known; }
};

// Looks up the whole name first, then without "no_" for booleans; dotted names (modules.pre_trainer.overrides.lr,
// lora.dim) by their whole path joined with '_', then by their last part. Options come before known names, and those
// before other programs' words for options.
NameMatch look_up(const OptionSet& options, std::string_view name);

// The options of the program's other commands, for messages. Default: there are none.
struct OtherCommands {
  std::string here;  // the command that is running: "prepare"
  // The other commands that have an option of this name.
  std::function<std::vector<std::string>(std::string_view name)> with_option;
  // Whether an option of the set has an effect in this command. One that has none is refused on the command line, and
  // passed over in a file, which may be another command's too. Null: all have one.
  std::function<bool(const Option& option)> acts = nullptr;

  // The same for a name as somebody wrote it: with dashes, with dots, with "no_" before it.
  std::vector<std::string> owners(std::string_view written) const;
};

// "unknown key 'micro_batchsize'. Did you mean 'micro_batch_size'?" with the place before it; or whose option it is.
UserError unknown_name(const OptionSet& options, const Setting& setting, const OtherCommands& others = {});

// "--lr is an option of train; generate has no use for it": `name` is an option of `owners`.
UserError useless_name(const Setting& setting, const std::vector<std::string>& owners, const std::string& here);

// Collects names without effect and renders one line for each reason.
class NoEffectNotes {
 public:
  explicit NoEffectNotes(std::string label = "no effect here") : label_(std::move(label)) {}
  void add(std::string_view name, std::string_view reason);
  std::vector<std::string> lines() const;

 private:
  std::string label_;
  std::vector<std::pair<std::string, std::vector<std::string>>> names_of_reason_;  // in order of appearance
};

}  // namespace megalith
