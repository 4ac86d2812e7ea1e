#include "tokenizer/jinja_lexer.h"

#include <algorithm>
#include <cctype>

#include "tokenizer/utf8.h"

namespace megalith {
namespace {

using Kind = JinjaToken::Kind;

constexpr size_t kLongestName = 200;
constexpr size_t kMostSourceBytes = size_t{1} << 20;  // as a tree they take a hundred times as much
constexpr size_t kMostMessageBytes = 2000;            // one may hold a text made by a template

bool is_jinja_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_jinja_digit(char c) { return c >= '0' && c <= '9'; }

size_t leading_space(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(end));
    if (!is_space(step.code_point)) break;
    end += static_cast<size_t>(step.length);
  }
  return end;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(decode_utf8(text.substr(begin)).code_point)) break;
    text = text.substr(0, begin);
  }
  return text;
}

class JinjaLexer {
 public:
  JinjaLexer(std::string source, std::string_view name) : source_(std::move(source)), name_(name) {}

  std::vector<JinjaToken> run() {
    while (at_ < source_.size()) {
      size_t begin = source_.find('{', at_);
      while (begin != std::string::npos && !opens(begin)) begin = source_.find('{', begin + 1);
      if (begin == std::string::npos) {
        add_text(std::string_view(source_).substr(at_));
        at_ = source_.size();
        break;
      }
      tag(begin);
    }
    tokens_.push_back({Kind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  bool opens(size_t place) const {
    return place + 1 < source_.size() && std::string_view("{%#").find(source_[place + 1]) != std::string_view::npos;
  }
  bool has(std::string_view word) const { return std::string_view(source_).substr(at_).starts_with(word); }
  [[noreturn]] void fail(std::string_view message) const { throw jinja_error(name_, line_, message); }

  void count_lines(std::string_view text) { line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n')); }
  void add_text(std::string_view text) {
    if (!text.empty()) tokens_.push_back({Kind::kText, std::string(text), line_});
  }
  void add(Kind kind, std::string text = "") { tokens_.push_back({kind, std::move(text), line_}); }

  // The text before a tag, and the tag.
  void tag(size_t begin) {
    const std::string_view whole = std::string_view(source_).substr(at_, begin - at_);
    const char kind = source_[begin + 1];
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    std::string_view text = whole;
    if (sign == '-') {
      text = without_trailing_space(text);
    } else if (sign != '+' && kind != '{') {
      const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line_begin > 0 || is_line_begin_) && leading_space(text.substr(line_begin)) == text.size() - line_begin) {
        text = text.substr(0, line_begin);
      }
    }
    add_text(text);
    count_lines(whole);
    at_ = begin + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    if (kind == '#') {
      const size_t end = source_.find("#}", at_);
      if (end == std::string::npos) fail("a comment '{#' does not end");
      const char last = end > at_ ? source_[end - 1] : '\0';
      count_lines(std::string_view(source_).substr(at_, end - at_));
      at_ = end + 2;
      finish_tag(last, true);
      return;
    }
    add(kind == '{' ? Kind::kPrintBegin : Kind::kBlockBegin);
    words(kind == '{' ? "}}" : "%}");
  }

  // Handles blanks after a tag that ended with this sign.
  void finish_tag(char sign, bool is_block) {
    const size_t begin = at_;
    if (sign == '-') {
      at_ += leading_space(std::string_view(source_).substr(at_));
    } else if (sign != '+' && is_block && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    count_lines(std::string_view(source_).substr(begin, at_ - begin));
    is_line_begin_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  // The words of a tag, and its end.
  void words(std::string_view end) {
    const bool is_block = end == "%}";
    const int begin_line = line_;
    std::string open;  // brackets inside which "}}" does not end the tag
    for (;;) {
      const size_t blank = leading_space(std::string_view(source_).substr(at_));
      count_lines(std::string_view(source_).substr(at_, blank));
      at_ += blank;
      if (at_ >= source_.size()) {
        throw jinja_error(name_, begin_line, is_block ? "a tag '{%' does not end" : "a tag '{{' does not end");
      }
      if (open.empty()) {
        const char sign = source_[at_];
        const bool has_sign = sign == '-' || (sign == '+' && is_block);
        if (std::string_view(source_).substr(at_ + (has_sign ? 1 : 0)).starts_with(end)) {
          add(is_block ? Kind::kBlockEnd : Kind::kPrintEnd);
          at_ += end.size() + (has_sign ? 1 : 0);
          finish_tag(has_sign ? sign : '\0', is_block);
          return;
        }
      }
      word(open);
    }
  }

  void word(std::string& open) {
    const char c = source_[at_];
    if (c == '\'' || c == '"') {
      string_word(c);
    } else if (is_jinja_digit(c)) {
      number_word();
    } else if (is_jinja_name(c)) {
      size_t end = at_;
      while (end < source_.size() && is_jinja_name(source_[end])) ++end;
      if (end - at_ > kLongestName) fail(fmt::format("a name of more than {} characters", kLongestName));
      add(Kind::kName, source_.substr(at_, end - at_));
      at_ = end;
    } else {
      operator_word(open);
    }
  }

  void operator_word(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", "<=", ">="}) {
      if (!has(two)) continue;
      add(Kind::kOperator, std::string(two));
      at_ += 2;
      return;
    }
    const char c = source_[at_];
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      fail(fmt::format("the character '{}' belongs to no word of a template",
                       source_.substr(at_, static_cast<size_t>(decode_utf8(source_.substr(at_, 4)).length))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(fmt::format("'{}' closes nothing", c));
      open.pop_back();
    }
    add(Kind::kOperator, std::string(1, c));
    ++at_;
  }

  void number_word() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_jinja_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_jinja_digit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (end + 1 + sign < source_.size() && is_jinja_digit(source_[end + 1 + sign])) {
        is_float = true;
        end += 1 + sign;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(is_float ? Kind::kFloat : Kind::kInt, std::move(text));
    at_ = end;
  }

  // A string with Python's escapes.
  void string_word(char quote) {
    std::string text;
    const int begin_line = line_;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] == '\n') ++line_;
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = escape(i + 1, text);
      } else {
        text += source_[i];
      }
    }
    if (i >= source_.size()) throw jinja_error(name_, begin_line, "a text in quotes does not end");
    tokens_.push_back({Kind::kString, std::move(text), begin_line});
    at_ = i + 1;
  }

  // Decodes the escape after a backslash at `i`; returns its last byte.
  size_t escape(size_t i, std::string& text) {
    const char c = source_[i];
    static constexpr std::string_view kNames = "abfnrtv'\"\\", kBytes = "\a\b\f\n\r\t\v'\"\\";
    if (const size_t found = kNames.find(c); found != std::string_view::npos) {
      text += kBytes[found];
      return i;
    }
    if (c == '\n') {  // line continuation
      ++line_;
      return i;
    }
    const bool is_octal = c >= '0' && c <= '7';
    const size_t most = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : is_octal ? 3 : 0;
    if (most == 0) {  // not an escape: both stay
      text += '\\';
      text += c;
      return i;
    }
    size_t end = is_octal ? i : i + 1;
    uint32_t value = 0;
    const size_t begin = end;
    while (end < source_.size() && end - begin < most &&
           (is_octal ? source_[end] >= '0' && source_[end] <= '7'
                     : std::isxdigit(static_cast<unsigned char>(source_[end])) != 0)) {
      const char digit = source_[end++];
      const int number = is_jinja_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10;
      value = value * (is_octal ? 8u : 16u) + static_cast<uint32_t>(number);
    }
    const bool is_character = value < 0x110000 && (value < 0xD800 || value > 0xDFFF);
    if ((!is_octal && end - begin != most) || !is_character) fail("an escape '\\' in a text names no character");
    append_utf8(value, text);
    return end - 1;
  }

  std::string source_;
  std::string_view name_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_begin_ = true;
  std::vector<JinjaToken> tokens_;
};

// Line ends become "\n", and a final one is dropped, as in Jinja.
std::string normalized_source(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

std::string shortened_message(std::string_view message) {
  if (message.size() <= kMostMessageBytes) return std::string(message);
  message = message.substr(0, kMostMessageBytes);
  return fmt::format("{} …", message.substr(0, message.size() - incomplete_utf8_tail(message)));
}

UserError jinja_error(std::string_view name, int line, std::string_view message) {
  return UserError(fmt::format("{}:{}: {}", name, line, shortened_message(message)),
                   "chat templates are read here as transformers reads them, in the part of Jinja that the published "
                   "ones use");
}

std::vector<JinjaToken> lex_jinja(std::string_view source, std::string_view name) {
  if (source.size() > kMostSourceBytes) {
    throw jinja_error(
        name, 1, fmt::format("the template has {} bytes, and at most {} are read", source.size(), kMostSourceBytes));
  }
  if (!is_valid_utf8(source)) throw jinja_error(name, 1, "the template is not UTF-8");
  return JinjaLexer(normalized_source(source), name).run();
}

}  // namespace megalith
