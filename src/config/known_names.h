// Names from Megatron-LM, Primus and Transformer Engine that are no options here: without effect (one line says why),
// not supported (an error unless the value is neutral), or renamed upstream (an error with the new name). An option
// overrides its row in this table.
//
// A name may be without effect only if it changes neither results, nor memory fit, nor whether a run works.
// docs/accepted_names.md is printed from the table.
//
// Source: Megatron-LM megatron/training/arguments.py (core_r0.14.0), Primus primus/configs/**/*.yaml, ROCm/Megatron-LM
// examples/**/*.sh.
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
    kNoEffect,     // `text` says why
    kUnsupported,  // changes results: an error unless the value is neutral; `text` names the feature
    kRemoved,      // removed upstream: `text` has the replacement
  };
  Kind kind = Kind::kNoEffect;
  std::string text;
  // On the command line takes true, false or nothing; others take values.
  bool is_switch = false;
  std::vector<std::string> neutral;  // values that ask for nothing; null always is
};

// Entry of a name, or of an environment variable's family (NVTE_…, NCCL_…); or nullptr.
const KnownName* find_known_name(std::string_view name);

// True for null and the neutral values (false = no = 0, 1 = 1.0).
bool is_neutral(const std::vector<std::string>& neutral, const WrittenValue& value);
inline bool is_neutral(const KnownName& known, const WrittenValue& value) { return is_neutral(known.neutral, value); }

struct NameMatch {
  Option* option = nullptr;  // at most one of the two
  const KnownName* known = nullptr;
  bool is_negated = false;  // no_NAME of a known NAME, or an opposite
  std::string name = {};
  const OtherWord* word = nullptr;  // set if another program's word led to the option

  explicit operator bool() const { return option || known; }
};

// Looks up the whole name, then without "no_" for booleans; dotted names (modules.pre_trainer.overrides.lr, lora.dim)
// by their path joined with '_', then their last part. Options come first, then known names, then other programs'
// words.
NameMatch look_up(const OptionSet& options, std::string_view name);

// The program's other commands' options, for messages. Default: none.
struct OtherCommands {
  std::string here;  // the running command: "prepare"
  std::function<std::vector<std::string>(std::string_view name)> with_option;
  // True if an option acts in this command; others are refused on the command line and ignored in files, which commands
  // share. Null: all act.
  std::function<bool(const Option& option)> acts = nullptr;

  // Likewise for a name as written: with dashes, dots, "no_".
  std::vector<std::string> owners(std::string_view written) const;
};

// "unknown key 'micro_batchsize'. Did you mean 'micro_batch_size'?" after its place; or whose option it is.
UserError unknown_name(const OptionSet& options, const Setting& setting, const OtherCommands& others = {});

// "--lr is an option of train; generate has no use for it".
UserError useless_name(const Setting& setting, const std::vector<std::string>& owners, const std::string& here);

// Collects names without effect; one line for each reason.
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
