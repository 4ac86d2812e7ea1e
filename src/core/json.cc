#include "core/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace megalith {
namespace {

constexpr int kMaxDepth = 512;

// Fits one line.
std::string excerpt(const Json& value) {
  std::string text = dump_json(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] void fail_type(const Json& value, std::string_view what, std::string_view expected) {
  throw UserError(fmt::format("{} is {}, expected {}", what, excerpt(value), expected));
}

// Null from 2^53 on, where doubles are inexact.
std::optional<int64_t> whole_of(double value) {
  if (!(std::abs(value) < 0x1p53) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

template <typename T>
struct Reader;

template <>
struct Reader<bool> {
  static bool read(const Json& value, std::string_view what) {
    if (!value.is_boolean()) fail_type(value, what, "true or false");
    return value.get<bool>();
  }
};

template <>
struct Reader<int64_t> {
  static int64_t read(const Json& value, std::string_view what) {
    if (const auto number = try_whole_number(value)) return *number;
    fail_type(value, what, value.is_number_unsigned() ? "a whole number below 2^63" : "a whole number");
  }
};

template <>
struct Reader<uint64_t> {
  static uint64_t read(const Json& value, std::string_view what) {
    if (value.is_number_unsigned()) return value.get<uint64_t>();
    const int64_t number = Reader<int64_t>::read(value, what);
    if (number < 0) fail_type(value, what, "a whole number from 0 on");
    return static_cast<uint64_t>(number);
  }
};

int64_t read_whole(const Json& value, int64_t least, int64_t most, std::string_view what) {
  const int64_t number = Reader<int64_t>::read(value, what);
  if (number < least || number > most) fail_type(value, what, fmt::format("a whole number from {} to {}", least, most));
  return number;
}

template <>
struct Reader<int> {
  static int read(const Json& value, std::string_view what) {
    return static_cast<int>(read_whole(value, INT_MIN, INT_MAX, what));
  }
};

template <>
struct Reader<double> {
  static double read(const Json& value, std::string_view what) {
    if (!value.is_number()) fail_type(value, what, "a number");
    return value.get<double>();
  }
};

template <>
struct Reader<std::string> {
  static std::string read(const Json& value, std::string_view what) {
    if (!value.is_string()) fail_type(value, what, "a text in quotes");
    return value.get<std::string>();
  }
};

template <typename T>
struct Reader<std::vector<T>> {
  static std::vector<T> read(const Json& value, std::string_view what) {
    if (!value.is_array()) fail_type(value, what, "a list in brackets");
    std::vector<T> items;
    items.reserve(value.size());
    for (size_t i = 0; i < value.size(); ++i)
      items.push_back(Reader<T>::read(value[i], fmt::format("{}[{}]", what, i)));
    return items;
  }
};

// Copying and writing deep values recurses.
void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        throw UserError(fmt::format("{}: nested deeper than {} levels at byte {}", where, kMaxDepth, i));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

template <typename Value>
std::string dump(const Value& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Value::error_handler_t::replace);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  check_depth(text, where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    // error.byte counts from 1, past the offending character.
    const size_t byte = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(byte), '\n');
    std::string reason = error.what();
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason = reason.substr(colon + 2);
    throw UserError(fmt::format("{}:{}: not valid JSON at byte {}: {}", where, line, byte, reason));
  } catch (const Json::out_of_range& error) {
    throw UserError(fmt::format("{}: a number is too large for JSON here: {}", where, error.what()));
  }
}

Json load_json(const std::filesystem::path& path) {
  const MappedFile file(path, MappedFile::Access::kSequential);
  return parse_json(file.text(), path.string());
}

std::string dump_json(const Json& value) { return dump(value, -1); }
std::string dump_json(const OrderedJson& value) { return dump(value, -1); }
std::string dump_json_pretty(const Json& value) { return dump(value, 2) + "\n"; }
std::string dump_json_pretty(const OrderedJson& value) { return dump(value, 2) + "\n"; }

const Json* find_member(const Json& object, std::string_view key, std::string_view where) {
  if (!object.is_object()) fail_type(object, where, fmt::format("an object with \"{}\"", key));
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& get_member(const Json& object, std::string_view key, std::string_view where) {
  const Json* member = find_member(object, key, where);
  if (member == nullptr) throw UserError(fmt::format("{}: \"{}\" is missing", where, key));
  return *member;
}

int64_t whole_number(double value, int64_t least, int64_t most, std::string_view what) {
  const auto number = whole_of(value);
  if (number && *number >= least && *number <= most) return *number;
  throw UserError(fmt::format("{} is {}, expected a whole number from {} to {}", what, value, least, most));
}

std::optional<int64_t> try_whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    return value.get<int64_t>();
  } else if (value.is_number_float()) {
    return whole_of(value.get<double>());
  }
  return std::nullopt;
}

const std::string* try_text(const Json& value) { return value.get_ptr<const std::string*>(); }

template <typename T>
T json_as(const Json& value, std::string_view what) {
  return Reader<T>::read(value, what);
}

template <typename T>
T json_get(const Json& object, std::string_view key, std::string_view where) {
  return Reader<T>::read(get_member(object, key, where), fmt::format("{}: {}", where, key));
}

template <typename T>
std::optional<T> json_find(const Json& object, std::string_view key, std::string_view where) {
  const Json* member = find_member(object, key, where);
  if (member == nullptr) return std::nullopt;
  return Reader<T>::read(*member, fmt::format("{}: {}", where, key));
}

int64_t json_get_whole(const Json& object, std::string_view key, int64_t least, int64_t most, std::string_view where) {
  return read_whole(get_member(object, key, where), least, most, fmt::format("{}: {}", where, key));
}

#define MEGALITH_JSON_TYPE(T)                                              \
  template T json_as<T>(const Json&, std::string_view);                    \
  template T json_get<T>(const Json&, std::string_view, std::string_view); \
  template std::optional<T> json_find<T>(const Json&, std::string_view, std::string_view)
MEGALITH_JSON_TYPE(bool);
MEGALITH_JSON_TYPE(int);
MEGALITH_JSON_TYPE(int64_t);
MEGALITH_JSON_TYPE(uint64_t);
MEGALITH_JSON_TYPE(double);
MEGALITH_JSON_TYPE(std::string);
MEGALITH_JSON_TYPE(std::vector<int64_t>);
MEGALITH_JSON_TYPE(std::vector<double>);
MEGALITH_JSON_TYPE(std::vector<std::string>);
MEGALITH_JSON_TYPE(std::vector<std::vector<int64_t>>);
#undef MEGALITH_JSON_TYPE

}  // namespace megalith
