// Names of other programs that mean something only together with others: a switch that takes options back, a word that
// says more than its own option, a name that counts only beside a certain value of an option.
//
// Source: Primus primus/configs/modules/megatron/*.yaml (v26.5), Megatron-LM megatron/training/arguments.py.
#pragma once

#include <span>
#include <string_view>

namespace megalith {

// Where the switch is false, the option is as if nobody had set it. Primus's trainer presets keep options so.
struct GatedOption {
  std::string_view gate, option;
};
std::span<const GatedOption> gated_options();
bool is_gate(std::string_view name);

// Whoever writes the word also means that value of the option, unless the option is set as well.
struct ImpliedValue {
  std::string_view word, option, value;
};
std::span<const ImpliedValue> implied_values();
bool implies_values(std::string_view word);

// The known name (known_names.h) asks for nothing where the option has one of the values, which are written one|other.
// Presets give it to runs that never read it.
struct IdleName {
  std::string_view name, option, values, reason;
};
std::span<const IdleName> idle_names();
bool may_be_idle(std::string_view name);

}  // namespace megalith
