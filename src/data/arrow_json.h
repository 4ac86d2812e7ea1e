// Arrow values as JSON, for data/arrow_plugin.cc. Header-only: the plug-in is one source file.
#pragma once

#include <arrow/api.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "core/base64.h"

namespace megalith::arrow_json {

inline void append_text(std::string& line, std::string_view text) {
  line += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (byte < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", byte);
      line += code;
    } else {
      line += c;
    }
  }
  line += '"';
}

inline bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::NA:
      return true;
    case arrow::Type::DICTIONARY:
      return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

// Empty for null.
inline std::string_view text_at(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return "";
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetView(row);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetView(row);
    case arrow::Type::STRING_VIEW:
      return static_cast<const arrow::StringViewArray&>(array).GetView(row);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return text_at(*words.dictionary(), words.GetValueIndex(row));
    }
    default:
      return "";
  }
}

inline bool is_bytes(const arrow::DataType& type) {
  return type.id() == arrow::Type::BINARY || type.id() == arrow::Type::LARGE_BINARY;
}

// As base64 (RFC 4648), without line breaks.
inline void append_bytes(std::string& line, const arrow::Array& array, int64_t row) {
  const std::string_view bytes = array.type_id() == arrow::Type::BINARY
                                     ? static_cast<const arrow::BinaryArray&>(array).GetView(row)
                                     : static_cast<const arrow::LargeBinaryArray&>(array).GetView(row);
  line += '"';
  append_base64(line, bytes);
  line += '"';
}

// True for texts, numbers, booleans, and lists and structs of them.
inline bool has_json(const arrow::DataType& type, bool with_bytes) {
  if (with_bytes && is_bytes(type)) return true;
  if (is_text(type) || arrow::is_integer(type.id())) return true;
  switch (type.id()) {
    case arrow::Type::BOOL:
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
    case arrow::Type::STRUCT:  // drops members that have no JSON
      return true;
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
      return has_json(*static_cast<const arrow::BaseListType&>(type).value_type(), with_bytes);
    default:
      return false;
  }
}

void append_value(std::string& line, const arrow::Array& array, int64_t row, bool with_bytes);

// Columns of a table, or members of a struct, at a row. Leaves out nulls and what has no JSON.
template <typename FieldOf, typename ArrayOf>
void append_object(std::string& line, int count, int64_t row, bool with_bytes, const FieldOf& name_of,
                   const ArrayOf& array_of) {
  line += '{';
  bool is_first = true;
  for (int i = 0; i < count; ++i) {
    const arrow::Array& array = *array_of(i);
    if (array.IsNull(row) || !has_json(*array.type(), with_bytes)) continue;
    if (!is_first) line += ", ";
    is_first = false;
    append_text(line, name_of(i));
    line += ": ";
    append_value(line, array, row, with_bytes);
  }
  line += '}';
}

template <typename List>
void append_list(std::string& line, const List& list, int64_t row, bool with_bytes) {
  line += '[';
  const int64_t begin = list.value_offset(row), end = begin + list.value_length(row);
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) line += ", ";
    append_value(line, *list.values(), i, with_bytes);
  }
  line += ']';
}

inline void append_number(std::string& line, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  line += std::isfinite(value) ? text : "null";
}

inline void append_value(std::string& line, const arrow::Array& array, int64_t row, bool with_bytes) {
  if (array.IsNull(row)) {
    line += "null";
    return;
  }
  if (is_text(*array.type())) return append_text(line, text_at(array, row));
  if (is_bytes(*array.type())) return append_bytes(line, array, row);
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      line += static_cast<const arrow::BooleanArray&>(array).Value(row) ? "true" : "false";
      return;
    case arrow::Type::FLOAT:
      return append_number(line, static_cast<const arrow::FloatArray&>(array).Value(row));
    case arrow::Type::DOUBLE:
      return append_number(line, static_cast<const arrow::DoubleArray&>(array).Value(row));
    case arrow::Type::LIST:
      return append_list(line, static_cast<const arrow::ListArray&>(array), row, with_bytes);
    case arrow::Type::LARGE_LIST:
      return append_list(line, static_cast<const arrow::LargeListArray&>(array), row, with_bytes);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_list(line, static_cast<const arrow::FixedSizeListArray&>(array), row, with_bytes);
    case arrow::Type::STRUCT: {
      const auto& members = static_cast<const arrow::StructArray&>(array);
      const arrow::DataType& type = *array.type();
      return append_object(
          line, type.num_fields(), row, with_bytes, [&](int i) -> std::string_view { return type.field(i)->name(); },
          [&](int i) { return members.field(i); });
    }
    default: {  // integers of all widths
      const auto scalar = array.GetScalar(row);
      line += scalar.ok() ? (*scalar)->ToString() : "null";
    }
  }
}

}  // namespace megalith::arrow_json
