// Other programs' names that depend on others: a switch that takes options back, a word that implies another option, a
// name that counts only beside a certain value.
//
// Source: Primus primus/configs/modules/megatron/*.yaml (v26.5), Megatron-LM megatron/training/arguments.py.
#pragma once

#include <span>
#include <string_view>

namespace megalith {

// While the switch is false the option counts as unset, as in Primus's trainer presets.
struct GatedOption {
  std::string_view gate, option;
};
std::span<const GatedOption> gated_options();
bool is_gate(std::string_view name);

// The word implies that value, unless the option is set too.
struct ImpliedValue {
  std::string_view word, option, value;
};
std::span<const ImpliedValue> implied_values();
bool implies_values(std::string_view word);

// The known name (known_names.h) asks for nothing while the option has one of the values (one|other). Presets set it
// for runs that never read it.
struct IdleName {
  std::string_view name, option, values, reason;
};
std::span<const IdleName> idle_names();
bool may_be_idle(std::string_view name);

}  // namespace megalith
