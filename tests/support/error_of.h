// The message of a refusal.
#pragma once

#include <functional>
#include <string>

#include "core/error.h"

namespace megalith::test {

// Message and remedy of the UserError that `body` throws; "nothing was thrown" without one.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace megalith::test
