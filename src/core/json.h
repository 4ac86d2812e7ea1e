// JSON with clear errors. Only .cc files include nlohmann's full header.
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
using OrderedJson = nlohmann::ordered_json;  // insertion order, for readers

// `where` names the text: "config.json:3: … (byte 57)". Refuses nesting beyond 512 levels, for the stack's sake.
Json parse_json(std::string_view text, std::string_view where);
Json load_json(const std::filesystem::path& path);

// One line without blanks; invalid UTF-8 becomes U+FFFD. Doubles keep all digits.
std::string dump_json(const Json& value);
std::string dump_json(const OrderedJson& value);
// Indented by two; ends in a line break.
std::string dump_json_pretty(const Json& value);
std::string dump_json_pretty(const OrderedJson& value);

// Null if missing or null. UserError if not an object.
const Json* find_member(const Json& object, std::string_view key, std::string_view where);
const Json& get_member(const Json& object, std::string_view key, std::string_view where);

// The only way to take values out of JSON (tests/style checks): nlohmann's get<int64_t>() of 1e308 is undefined
// behaviour, and of true is 1.
//
// T: bool, int, int64_t, uint64_t (also from 8.0), double, std::string, or a vector of int64_t, double, std::string.
// `what` begins the UserError: "config.json: hidden_size is "big", expected a whole number".
template <typename T>
T json_as(const Json& value, std::string_view what);

// json_find: null if missing or null.
template <typename T>
T json_get(const Json& object, std::string_view key, std::string_view where);
template <typename T>
std::optional<T> json_find(const Json& object, std::string_view key, std::string_view where);
template <typename T>
T json_get_or(const Json& object, std::string_view key, T fallback, std::string_view where) {
  return json_find<T>(object, key, where).value_or(std::move(fallback));
}

// Null unless the type fits.
std::optional<int64_t> try_whole_number(const Json& value);
const std::string* try_text(const Json& value);

// For counts stored as doubles; least … most.
int64_t whole_number(double value, int64_t least, int64_t most, std::string_view what);

int64_t json_get_whole(const Json& object, std::string_view key, int64_t least, int64_t most, std::string_view where);

}  // namespace megalith
