// What declarations say of values that no person wrote, such as those of a config.json, and of options that a model
// does not read.
#pragma once

#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Numbers beyond their range. 0 may stand for what is unset.
void check_ranges(const OptionSet& options, std::vector<UserError>& errors);

// Options that a model of this type does not read (OptionTraits::read_by) and that are not as in `fresh`, the same
// structs with their defaults. An option that stands only in `given` is nobody's business here.
void check_readers(const OptionSet& given, const OptionSet& fresh, ModelType type, std::vector<UserError>& errors);

}  // namespace megalith
