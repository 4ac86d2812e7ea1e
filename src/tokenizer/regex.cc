#include "tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>

#include "core/error.h"
#include "tokenizer/unicode_additions.h"

namespace megalith {
namespace {

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Class members equivalent to `\s`, `\p{L}` and the like, or "" if PCRE2 can read the escape itself. `length` is the
// escape's.
std::string class_members(std::string_view escape, bool in_class, size_t& length) {
  // \s in PCRE2 also holds U+180E, which lost the White_Space property in Unicode 6.3: name the class instead.
  if (escape.starts_with("\\s") || escape.starts_with("\\S")) {
    length = 2;
    return R"(\p{Z}\x09-\x0d\x{85})";
  }
  // \w: Oniguruma counts marks, letters in circles and (outside of brackets) Latin-1's superscript digits; PCRE2 counts
  // all numbers.
  if (escape.starts_with("\\w") || escape.starts_with("\\W")) {
    length = 2;
    std::string members =
        R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
    if (!in_class) members += R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
    for (const char category : {'L', 'M', 'N'}) {
      for (const CodePointRange& range : new_code_points(category)) {
        members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
      }
    }
    return members;
  }
  if (escape.size() < 5 || (escape[1] != 'p' && escape[1] != 'P') || escape[2] != '{' || escape[4] != '}') return "";
  std::string members = fmt::format("\\p{{{}}}", escape[3]);
  for (const CodePointRange& range : new_code_points(escape[3])) {
    members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  }
  length = 5;
  return members;
}

// The pattern with Unicode classes as Oniguruma reads them.
std::string with_unicode_classes(std::string_view pattern, std::string_view where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      size_t length = 2;
      const std::string members = class_members(pattern.substr(i), in_class, length);
      const bool is_negated = pattern[i + 1] == 'S' || pattern[i + 1] == 'P' || pattern[i + 1] == 'W';
      if (members.empty() || (in_class && is_negated)) {
        out += pattern.substr(i, 2);
        length = 2;
      } else {
        out += in_class ? members : fmt::format("[{}{}]", is_negated ? "^" : "", members);
      }
      i += length - 1;
      continue;
    }
    if (in_class) {
      if (c == ']') in_class = false;
      const bool is_posix = c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':';
      if (is_posix) {
        const size_t end = pattern.find(":]", i);
        if (end != std::string_view::npos) {
          out += pattern.substr(i, end + 2 - i);
          i = end + 1;
          continue;
        }
      } else if (c == '[' || pattern.substr(i, 2) == "&&") {
        throw UserError(
            fmt::format("{}: the regular expression \"{}\" nests or intersects character classes, which is "
                        "not supported",
                        where, pattern));
      }
    } else if (c == '[') {
      in_class = true;
      out += c;
      // A leading ']' is literal.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    out += c;
  }
  return out;
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* code) : pcre(code) {}
  ~Code() { pcre2_code_free(pcre); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* pcre;
};

Regex::Regex(std::string_view pattern, std::string_view where) : pattern_(pattern) {
  const std::string translated = with_unicode_classes(pattern, where);
  int error = 0;
  // Multi-line, because Oniguruma's ^ and $ always match at lines. \C would cut characters.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    throw UserError(fmt::format("{}: the regular expression \"{}\" is not valid at character {}: {}", where, pattern,
                                offset, error_text(error)));
  }
  code_ = std::make_unique<Code>(code);
  // Without JIT support for the CPU, matching falls back to the interpreter: slower, same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Scanner::State {
  State(const Regex& regex, std::string_view text)
      : regex(regex),
        text(text),
        data(pcre2_match_data_create_from_pattern(regex.code_->pcre, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int match() {
    return pcre2_match(regex.code_->pcre, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                       PCRE2_NO_UTF_CHECK, data, context);
  }

  const Regex& regex;
  std::string_view text;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;  // only for the rare text that outgrows 32 KiB of the thread's own stack
  size_t position = 0;
  bool was_empty = false;  // the last match was empty: the next may not be empty at the same offset
};

Regex::Scanner::Scanner(const Regex& regex, std::string_view text) : state_(std::make_unique<State>(regex, text)) {}
Regex::Scanner::~Scanner() = default;

bool Regex::Scanner::next(size_t& begin, size_t& end) {
  State& s = *state_;
  // After an empty match look further right, as Oniguruma's find_iter does.
  if (s.was_empty) {
    ++s.position;
    while (s.position < s.text.size() && (static_cast<uint8_t>(s.text[s.position]) & 0xC0) == 0x80) ++s.position;
  }
  if (s.position > s.text.size()) return false;
  int count = s.match();
  if (count == PCRE2_ERROR_JIT_STACKLIMIT && s.stack == nullptr) {
    s.stack = pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr);
    if (s.stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(s.context, nullptr, s.stack);
    count = s.match();
  }
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw UserError(fmt::format("matching the tokenizer's regular expression failed at byte {} of a text: {}",
                                s.position, error_text(count)),
                    "the text may hold an extremely long run of similar characters: split it into several documents");
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(s.data);
  begin = offsets[0];
  end = offsets[1];
  s.was_empty = begin == end;
  s.position = end;
  return true;
}

std::string escape_regex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~/").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace megalith
