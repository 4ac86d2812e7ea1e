// Checks of values that did not come from settings, such as a config.json's, and of options that a model does not read.
#pragma once

#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Numbers out of range; 0 may mean unset.
void check_ranges(const OptionSet& options, std::vector<UserError>& errors);

// Options that such a model does not read (OptionTraits::read_by) and that differ from `fresh`, the same structs with
// defaults. Options only in `given` are not checked.
void check_readers(const OptionSet& given, const OptionSet& fresh, ModelType type, std::vector<UserError>& errors);

// Resets what a preset set and such a model does not read: Primus's presets list the options of all models. also: the
// one that its experiments must set for any model. Returns notes.
std::vector<std::string> leave_out_unread(const OptionSet& options, ModelType type, const Option& also);

}  // namespace megalith
