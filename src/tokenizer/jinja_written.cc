// Values as text: Python's str() and repr(), and JSON; see jinja_value.h.
#include <fmt/format.h>
#include <utf8proc.h>

#include <cmath>

#include "tokenizer/jinja_value.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

std::string jinja_float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

// Appends each run of characters that need no escape in one call, from `begin` on.
class QuotedText {
 public:
  QuotedText(std::string_view text, JinjaWriter& out) : text_(text), out_(out) { out.budget().work(text.size(), 8); }
  void replace(size_t at, size_t length, std::string_view with) {
    finish(at);
    out_.add(with);
    begin_ = at + length;
  }
  void finish(size_t end) { out_.add(text_.substr(begin_, end - begin_)); }

 private:
  std::string_view text_;
  JinjaWriter& out_;
  size_t begin_ = 0;
};

void write_python_quoted(std::string_view text, JinjaWriter& out) {
  const bool uses_double = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = uses_double ? '"' : '\'';
  out.add({&quote, 1});
  QuotedText quoted(text, out);
  for (size_t i = 0; i < text.size();) {
    if (text[i] >= ' ' && text[i] < 0x7F && text[i] != quote && text[i] != '\\') {
      ++i;
      continue;
    }
    const Utf8Step step = decode_utf8(text.substr(i));
    const uint32_t c = step.code_point;
    const auto length = static_cast<size_t>(step.length);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      quoted.replace(i, length, c == '\\' ? "\\\\" : "\\'");
    } else if (c == '\n' || c == '\r' || c == '\t') {
      quoted.replace(i, length, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (!is_printable(c)) {
      out.budget().work(1, 100);
      quoted.replace(i, length,
                     c < 0x100     ? fmt::format("\\x{:02x}", c)
                     : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                                   : fmt::format("\\U{:08x}", c));
    }
    i += length;
  }
  quoted.finish(text.size());
  out.add({&quote, 1});
}

void write_json_quoted(std::string_view text, JinjaWriter& out) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
  out.add("\"");
  QuotedText quoted(text, out);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<uint8_t>(c) >= 0x20 && c != '"' && c != '\\') continue;
    const size_t found = kEscaped.find(c);
    out.budget().work(1, 100);
    quoted.replace(i, 1,
                   found != std::string_view::npos ? std::string{'\\', kNames[found]}
                                                   : fmt::format("\\u{:04x}", static_cast<unsigned>(c)));
  }
  quoted.finish(text.size());
  out.add("\"");
}

std::string number_text(const JinjaValue& value) {
  return value.is_int() ? fmt::format("{}", value.to_int()) : jinja_float_text(value.to_double());
}

void write_repr(const JinjaValue& value, JinjaWriter& out) {
  out.budget().work(1, 100);
  if (value.is_undefined()) return out.add("Undefined");
  if (value.is_none()) return out.add("None");
  if (value.is_bool()) return out.add(value.is_true() ? "True" : "False");
  if (value.is_number()) return out.add(number_text(value));
  if (const std::string* text = value.text()) return write_python_quoted(*text, out);
  if (value.function() != nullptr) return out.add(fmt::format("<function {}>", value.function()->name));
  if (value.space() != nullptr) return out.add("<Namespace>");
  std::string_view between;
  if (const JinjaItems* items = value.items()) {
    out.add("[");
    for (const JinjaValue& item : *items) {
      out.add(std::exchange(between, ", "));
      write_repr(item, out);
    }
    return out.add("]");
  }
  out.add("{");
  for (const auto& [key, member] : *value.members()) {
    out.add(std::exchange(between, ", "));
    write_python_quoted(key, out);
    out.add(": ");
    write_repr(member, out);
  }
  out.add("}");
}

void write_json(const JinjaValue& value, int64_t indent, int64_t level, JinjaWriter& out) {
  out.budget().work(1, 100);
  const auto line = [&](int64_t at) {
    if (indent < 0) return;
    out.add("\n");
    out.repeat(" ", static_cast<size_t>(indent * at));
  };
  const auto between = [&](bool is_first) {
    if (!is_first) out.add(indent >= 0 ? "," : ", ");
    line(level + 1);
  };
  if (const JinjaItems* items = value.items()) {
    if (items->empty()) return out.add("[]");
    out.add("[");
    for (size_t i = 0; i < items->size(); ++i) {
      between(i == 0);
      write_json((*items)[i], indent, level + 1, out);
    }
    line(level);
    out.add("]");
  } else if (const JinjaMembers* members = value.members()) {
    if (members->empty()) return out.add("{}");
    out.add("{");
    for (size_t i = 0; i < members->size(); ++i) {
      between(i == 0);
      write_json_quoted((*members)[i].first, out);
      out.add(": ");
      write_json((*members)[i].second, indent, level + 1, out);
    }
    line(level);
    out.add("}");
  } else if (const std::string* text = value.text()) {
    write_json_quoted(*text, out);
  } else if (value.is_none()) {
    out.add("null");
  } else if (value.is_bool()) {
    out.add(value.is_true() ? "true" : "false");
  } else if (value.is_float() && !std::isfinite(value.to_double())) {
    out.add(std::isnan(value.to_double()) ? "NaN" : value.to_double() > 0 ? "Infinity" : "-Infinity");
  } else if (value.is_number()) {
    out.add(number_text(value));
  } else {
    throw JinjaFault{fmt::format("tojson of {}", value.kind())};
  }
}

}  // namespace

JinjaValue JinjaValue::to_text(JinjaBudget& budget) const {
  if (text() != nullptr) return *this;
  JinjaWriter out(budget);
  if (!is_undefined()) write_repr(*this, out);
  return out.take();
}

JinjaValue jinja_to_json(const JinjaValue& value, int64_t indent, JinjaBudget& budget) {
  if (indent > 64) throw JinjaFault{"tojson with an indent above 64"};
  JinjaWriter out(budget);
  write_json(value, indent, 0, out);
  return out.take();
}

}  // namespace megalith
