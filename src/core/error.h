// The two kinds of error, and the checks that raise them.
//
//   UserError      fixable by the user (configuration, files, data, hardware): one clean message; exit code 2
//   InternalError  our invariant broke: message with file and line; exit code 1
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace megalith {

class UserError : public std::runtime_error {
 public:
  //   message  one line: what was asked and what was found
  //   remedy   what to do, printed indented below; may be empty
  explicit UserError(std::string message, std::string remedy = "");

  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string message_, remedy_;
};

// what() lists them all.
class UserErrors : public UserError {
 public:
  explicit UserErrors(std::vector<UserError> errors);
  const std::vector<UserError>& errors() const { return errors_; }

 private:
  std::vector<UserError> errors_;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_internal(const char* file, int line, const char* condition, const std::string& message);

// MEGALITH_CHECK(condition, format, values…) throws InternalError.
#define MEGALITH_CHECK(condition, ...)                                                                     \
  do {                                                                                                     \
    if (!(condition)) ::megalith::fail_internal(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)

// InternalError unless exact.
constexpr int64_t div_exact(int64_t a, int64_t b) {
  if (b == 0 || a % b != 0) fail_internal(__FILE__, __LINE__, "a % b == 0", fmt::format("{} does not divide {}", b, a));
  return a / b;
}

constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// InternalError unless the value survives.
template <typename To, typename From>
constexpr To narrow(From value) {
  const To result = static_cast<To>(value);
  if (static_cast<From>(result) != value || ((result < To{}) != (value < From{}))) {
    fail_internal(__FILE__, __LINE__, "narrow", fmt::format("{} does not fit", value));
  }
  return result;
}

}  // namespace megalith
