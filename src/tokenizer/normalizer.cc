// See normalizer.h. Unicode normal forms and graphemes come from utf8proc.
#include "tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base64.h"
#include "core/error.h"
#include "core/json.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

class UnicodeFormNormalizer final : public Normalizer {
 public:
  explicit UnicodeFormNormalizer(UnicodeForm form) : form_(form) {}
  void apply(NormalText& text) const override { to_unicode_form(form_, text.text); }
  bool is_local() const override { return true; }

 private:
  UnicodeForm form_;
};

// Strips white space at either end.
class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(NormalText& text) const override {
    const std::string_view whole = text.text;
    size_t begin = 0, end = whole.size();
    while (left_ && begin < end) {
      const Utf8Step step = decode_utf8(whole.substr(begin));
      if (!is_space(step.code_point)) break;
      begin += static_cast<size_t>(step.length);
    }
    while (right_ && end > begin) {
      size_t last = end - 1;
      while (last > begin && (static_cast<uint8_t>(whole[last]) & 0xC0) == 0x80) --last;
      if (!is_space(decode_utf8(whole.substr(last)).code_point)) break;
      end = last;
    }
    if (begin > 0) text.starts_input = false;
    text.text = text.text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  // is_local  the pattern matches single characters, regardless of their neighbours
  ReplaceNormalizer(Regex regex, std::string content, bool is_local)
      : regex_(std::move(regex)), content_(std::move(content)), is_local_(is_local) {}
  bool is_local() const override { return is_local_; }

  void apply(NormalText& text) const override {
    if (text.text.empty()) return;
    std::string out;
    out.reserve(text.text.size());
    size_t done = 0, begin = 0, end = 0;
    Regex::Scanner scanner(regex_, text.text);
    while (scanner.next(begin, end)) {
      if (begin == 0 && end > 0 && content_.empty()) text.starts_input = false;
      out.append(text.text, done, begin - done);
      out += content_;
      done = end;
    }
    if (done == 0 && out.empty()) return;
    out.append(text.text, done);
    text.text = std::move(out);
  }

 private:
  Regex regex_;
  std::string content_;
  bool is_local_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalText& text) const override {
    if (text.is_first && !text.text.empty()) text.text.insert(0, prefix_);
  }
  bool is_local() const override { return true; }

 private:
  std::string prefix_;
};

// SentencePiece's map as Hugging Face applies it: for graphemes of less than six bytes, the shortest matching prefix
// replaces the whole grapheme; otherwise per character.
class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap map) : map_(std::move(map)) {}

  void apply(NormalText& text) const override {
    const std::string_view whole = text.text;
    std::string out;
    out.reserve(whole.size());
    const auto put = [&](std::string_view part) {
      const Charsmap::Match match = map_.shortest_prefix(part);
      if (match.length > 0) out += match.replacement;
      return match.length > 0;
    };
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = grapheme_end(whole, begin);
      if (end - begin >= 6 || !put(whole.substr(begin, end - begin))) {
        for (size_t i = begin; i < end;) {
          const std::string_view character = whole.substr(i, utf8_length(whole[i]));
          if (!put(character)) out += character;
          i += character.size();
        }
      }
      begin = end;
    }
    text.text = std::move(out);
  }

 private:
  static size_t grapheme_end(std::string_view text, size_t begin) {
    Utf8Step step = decode_utf8(text.substr(begin));
    auto before = static_cast<utf8proc_int32_t>(step.code_point);
    size_t end = begin + static_cast<size_t>(step.length);
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      step = decode_utf8(text.substr(end));
      const auto after = static_cast<utf8proc_int32_t>(step.code_point);
      if (utf8proc_grapheme_break_stateful(before, after, &state)) break;
      before = after;
      end += static_cast<size_t>(step.length);
    }
    return end;
  }

  Charsmap map_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(NormalText& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }
  bool is_local() const override {
    return std::all_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->is_local(); });
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

void to_unicode_form(UnicodeForm form, std::string& text) {
  if (is_ascii(text)) return;  // the same in every form
  constexpr int kCompose = UTF8PROC_STABLE | UTF8PROC_COMPOSE, kDecompose = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  int flags = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? kCompose : kDecompose;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) flags |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(flags));
  MEGALITH_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
  text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
  std::free(result);
}

std::string read_pattern(const Json& json, std::string_view where) {
  if (const std::string* text = try_text(json)) return escape_regex(*text);
  if (const Json* regex = find_member(json, "Regex", where)) {
    return json_as<std::string>(*regex, fmt::format("{}: pattern.Regex", where));
  }
  return escape_regex(json_get<std::string>(json, "String", where));
}

std::unique_ptr<Normalizer> make_normalizer(const Json& json, std::string_view where) {
  if (json.is_null()) return nullptr;
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "NFC") return std::make_unique<UnicodeFormNormalizer>(UnicodeForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeFormNormalizer>(UnicodeForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeFormNormalizer>(UnicodeForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeFormNormalizer>(UnicodeForm::kNfkd);
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(json_get<bool>(json, "strip_left", where),
                                             json_get<bool>(json, "strip_right", where));
  }
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(json_get<std::string>(json, "prepend", where));
  if (type == "Replace") {
    const Json& pattern = get_member(json, "pattern", where);
    const std::optional<std::string> plain =
        pattern.is_object() ? json_find<std::string>(pattern, "String", where) : std::nullopt;
    const auto content = json_get<std::string>(json, "content", where);
    // Removing a character, or turning it into a mark, would make its neighbours meet.
    const bool stays = content == "\u2581" || (!content.empty() && content[0] >= ' ' && content[0] < 0x7F);
    return std::make_unique<ReplaceNormalizer>(Regex(read_pattern(pattern, where), where), content,
                                               plain && plain->size() == 1 && stays);
  }
  if (type == "Precompiled") {
    const std::string what = fmt::format("{}: precompiled_charsmap", where);
    return std::make_unique<PrecompiledNormalizer>(
        Charsmap(decode_base64(json_get<std::string>(json, "precompiled_charsmap", where), what), where));
  }
  if (type == "Sequence") {
    const Json& list = get_member(json, "normalizers", where);
    if (!list.is_array()) throw UserError(fmt::format("{}: \"normalizers\" is not a list", where));
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Json& step : list) {
      if (auto normalizer = make_normalizer(step, where)) steps.push_back(std::move(normalizer));
    }
    if (steps.empty()) return nullptr;
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  if (auto normalizer = make_character_normalizer(type, json, where)) return normalizer;
  throw UserError(fmt::format("{}: normalizer \"{}\" is not supported", where, type),
                  "supported are NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, "
                  "BertNormalizer, Precompiled, Nmt, ByteLevel and Sequence");
}

}  // namespace megalith
