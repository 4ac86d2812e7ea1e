// Throws errors that were found together.
#pragma once

#include <vector>

#include "core/error.h"

namespace megalith {

// A single one as it is, several as UserErrors.
inline void throw_errors(const std::vector<UserError>& errors) {
  if (errors.size() == 1) throw UserError(errors[0]);
  if (!errors.empty()) throw UserErrors(errors);
}

}  // namespace megalith
