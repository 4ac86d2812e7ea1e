// JSON with clear errors: parsing names file, line and byte; getters name the key and what was found. Thin helpers
// around nlohmann::json, whose full header only .cc files include.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps insertion order, for what people read

// Parses a text; `where` names it in errors. UserError: "config.json:3: … (byte 57)". Refuses nesting beyond 512
// levels, so hostile input cannot exhaust the stack.
Json parse_json(std::string_view text, std::string_view where);
Json load_json(const std::filesystem::path& path);

// One line without blanks, UTF-8 as it is (invalid: U+FFFD). Doubles keep all their digits.
std::string dump_json(const Json& value);
std::string dump_json(const OrderedJson& value);
// Indented by two blanks, ending in a line break.
std::string dump_json_pretty(const Json& value);
std::string dump_json_pretty(const OrderedJson& value);

// nullptr if missing or null. UserError if `object` is not an object.
const Json* find_member(const Json& object, std::string_view key, std::string_view where);
const Json& get_member(const Json& object, std::string_view key, std::string_view where);

// The only place where values are taken out of JSON (checked by tests/style): nlohmann's own get<int64_t>() of 1e308 is
// undefined behaviour, and of true it is 1.
//
// T is bool, int, int64_t, uint64_t (whole numbers, also written 8.0), double, std::string, or a vector of int64_t,
// double, std::string. `what` names the value in the UserError: "config.json: hidden_size is "big", expected a whole
// number".
template <typename T>
T json_as(const Json& value, std::string_view what);

// A required member, an optional one (missing or null: nothing), and one with a default.
template <typename T>
T json_get(const Json& object, std::string_view key, std::string_view where);
template <typename T>
std::optional<T> json_find(const Json& object, std::string_view key, std::string_view where);
template <typename T>
T json_get_or(const Json& object, std::string_view key, T fallback, std::string_view where) {
  return json_find<T>(object, key, where).value_or(std::move(fallback));
}

// Nothing unless the value is a whole number within int64_t, or a text: for callers with their own message.
std::optional<int64_t> try_whole_number(const Json& value);
const std::string* try_text(const Json& value);

// For counts that were stored as doubles: must be a whole number of least to most.
int64_t whole_number(double value, int64_t least, int64_t most, std::string_view what);

// A required whole number of least to most.
int64_t json_get_whole(const Json& object, std::string_view key, int64_t least, int64_t most, std::string_view where);

}  // namespace megalith
