// Reports errors of independent checks together.
#pragma once

#include <vector>

#include "core/error.h"

namespace megalith {

template <typename Action>
void collect(std::vector<UserError>& errors, const Action& action) {
  try {
    action();
  } catch (const UserErrors& several) {
    errors.insert(errors.end(), several.errors().begin(), several.errors().end());
  } catch (const UserError& error) {
    errors.push_back(error);
  }
}

}  // namespace megalith
