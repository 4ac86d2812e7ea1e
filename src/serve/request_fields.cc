#include "serve/request_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace megalith {

OrderedJson RequestError::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); };
  const char* type = status_ < 500 ? "invalid_request_error" : "server_error";
  return {{"error", {{"message", what()}, {"type", type}, {"param", or_null(param_)}, {"code", or_null(code_)}}}};
}

HttpAnswer RequestError::answer() const { return {.status = status_, .body = dump_json(body())}; }

RequestFields::RequestFields(const OrderedJson& object, std::string what) : object_(object), what_(std::move(what)) {
  if (!object.is_object()) {
    throw RequestError(fmt::format("{} must be a JSON object", what_.empty() ? "the request" : what_), what_);
  }
}

std::string RequestFields::path(std::string_view name) const {
  return what_.empty() ? std::string(name) : fmt::format("{}.{}", what_, name);
}

void RequestFields::fail_type(std::string_view name, std::string_view expected) const {
  std::string found = dump_json(object_.at(std::string(name)));
  if (found.size() > 60) found = found.substr(0, 57) + "...";
  throw RequestError(fmt::format("{} is {}, expected {}", path(name), found, expected), path(name));
}

const OrderedJson* RequestFields::find(std::string_view name) {
  const auto found = object_.find(std::string(*known_.emplace(name).first));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const OrderedJson& RequestFields::require(std::string_view name) {
  const OrderedJson* value = find(name);
  if (value == nullptr) throw RequestError(fmt::format("{} is missing", path(name)), path(name));
  return *value;
}

std::optional<bool> RequestFields::find_flag(std::string_view name) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_type(name, "true or false");
  return json_as<bool>(Json(*value), path(name));
}

std::optional<int64_t> RequestFields::find_whole(std::string_view name, int64_t least, int64_t most) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = value->is_number() ? try_whole_number(Json(*value)) : std::nullopt;
  if (!number || *number < least || *number > most) {
    fail_type(name, fmt::format("a whole number from {} to {}", least, most));
  }
  return number;
}

std::optional<double> RequestFields::find_number(std::string_view name, double least, double most) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? json_as<double>(Json(*value), path(name)) : least - 1;
  if (!(number >= least && number <= most)) fail_type(name, fmt::format("a number from {} to {}", least, most));
  return number;
}

std::optional<std::string> RequestFields::find_text(std::string_view name) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_type(name, "a text");
  return json_as<std::string>(Json(*value), path(name));
}

void RequestFields::accept(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void RequestFields::refuse(std::string_view name, std::string_view reason, const OrderedJson& harmless) {
  const OrderedJson* value = find(name);
  if (value == nullptr || *value == harmless) return;
  throw RequestError(fmt::format("{} is not supported: {}", path(name), reason), path(name), 400, "unsupported");
}

void RequestFields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    throw RequestError(fmt::format("unknown field {}", path(name)), path(name), 400, "unknown_field");
  }
}

}  // namespace megalith
