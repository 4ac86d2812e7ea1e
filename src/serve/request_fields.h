// The fields of a request's JSON object, with types and ranges; unread ones are refused.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/json.h"
#include "serve/http_server.h"

namespace megalith {

// An answer in OpenAI's form: {"error": {"message", "type", "param", "code"}}.
class RequestError : public std::runtime_error {
 public:
  // param  the field at fault; may be empty. code: for programs; may be empty
  explicit RequestError(const std::string& message, std::string param = "", int status = 400, std::string code = "")
      : std::runtime_error(message), param_(std::move(param)), code_(std::move(code)), status_(status) {}

  OrderedJson body() const;
  HttpAnswer answer() const;
  const std::string& param() const { return param_; }
  int status() const { return status_; }

 private:
  std::string param_, code_;
  int status_;
};

// null counts as absent. All throw RequestError.
class RequestFields {
 public:
  // what  names the object in messages: empty for the whole body, else "stream_options"
  explicit RequestFields(const OrderedJson& object, std::string what = "");

  const OrderedJson* find(std::string_view name);
  const OrderedJson& require(std::string_view name);
  std::optional<bool> find_flag(std::string_view name);
  std::optional<int64_t> find_whole(std::string_view name, int64_t least, int64_t most);
  std::optional<double> find_number(std::string_view name, double least, double most);
  std::optional<std::string> find_text(std::string_view name);
  // Fields ignored here, whatever their value.
  void accept(std::initializer_list<std::string_view> names);
  // Refuses a known, unsupported field unless it is absent or has this value.
  void refuse(std::string_view name, std::string_view reason, const OrderedJson& harmless = nullptr);
  // Refuses fields that were not read.
  void finish() const;

  std::string path(std::string_view name) const;  // "stream_options.include_usage"

 private:
  [[noreturn]] void fail_type(std::string_view name, std::string_view expected) const;

  const OrderedJson& object_;
  std::string what_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace megalith
