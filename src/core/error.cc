#include "core/error.h"

namespace megalith {
namespace {

std::string with_remedy(const std::string& message, const std::string& remedy) {
  return remedy.empty() ? message : message + "\n  " + remedy;
}

std::string joined(const std::vector<UserError>& errors) {
  std::string text;
  for (const UserError& error : errors) {
    if (!text.empty()) text += "\nerror: ";
    text += error.what();
  }
  return text;
}

}  // namespace

UserError::UserError(std::string message, std::string remedy)
    : std::runtime_error(with_remedy(message, remedy)), message_(std::move(message)), remedy_(std::move(remedy)) {}

UserErrors::UserErrors(std::vector<UserError> errors) : UserError(joined(errors)), errors_(std::move(errors)) {}

void fail_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: {} (violated: {})", file, line, message, condition));
}

}  // namespace megalith
