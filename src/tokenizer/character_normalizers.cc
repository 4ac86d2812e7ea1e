// Normalizers that work character by character; see normalizer.h.
#include <utf8proc.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/older_unicode.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

class CharacterNormalizer : public Normalizer {
 public:
  bool is_local() const final { return true; }
};

// Replaces each character by the output of `put(code point, out)`, possibly empty.
template <typename Put>
void rewrite(NormalText& text, Put&& put) {
  const std::string_view whole = text.text;
  std::string out;
  out.reserve(whole.size());
  for (size_t i = 0; i < whole.size();) {
    const auto byte = static_cast<uint8_t>(whole[i]);
    const Utf8Step step = byte < 0x80 ? Utf8Step{byte, 1, true} : decode_utf8(whole.substr(i));
    const size_t before = out.size();
    put(step.code_point, out);
    if (i == 0 && out.size() == before) text.starts_input = false;
    i += static_cast<size_t>(step.length);
  }
  text.text = std::move(out);
}

void put_lower_case(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  append_utf8(c == 0x130 ? 'i' : static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  if (c == 0x130) append_utf8(0x307, out);  // the one character whose lower case is two: İ
}

class LowercaseNormalizer final : public CharacterNormalizer {
 public:
  void apply(NormalText& text) const override { rewrite(text, put_lower_case); }
};

class StripAccentsNormalizer final : public CharacterNormalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite(text, [](uint32_t c, std::string& out) {
      if (c < 0x80 || !is_in(kMarks, c)) append_utf8(c, out);
    });
  }
};

// As in Google's neural machine translation: drops controls, turns odd spaces into blanks.
class NmtNormalizer final : public CharacterNormalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite(text, [](uint32_t c, std::string& out) {
      const bool is_control =
          (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      if (is_control) return;
      const bool is_blank = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                            (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                            c == 0xFFFD;
      append_utf8(is_blank ? ' ' : c, out);
    });
  }
};

class BertNormalizer final : public CharacterNormalizer {
 public:
  struct Options {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
  };
  explicit BertNormalizer(Options options) : options_(options) {
    for (uint32_t c = 0; c < ascii_.size(); ++c) {
      std::string kept;
      if (options_.clean_text) {
        put_clean(c, kept);
      } else {
        kept += static_cast<char>(c);
      }
      std::string result;
      if (!kept.empty() && options_.lowercase) put_lower_case(static_cast<uint8_t>(kept[0]), result);
      if (!options_.lowercase) result = kept;
      ascii_[c] = result.empty() ? kDropped : static_cast<int16_t>(result[0]);
    }
    for (uint32_t c = 0x80; c < short_cuts_.size(); ++c) {
      if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0) continue;
      NormalText text;
      append_utf8(c, text.text);
      apply_to_any(text);
      short_cuts_[c] = text.text;
    }
  }

  // ASCII in one go, and whatever is between by itself: no form joins the two.
  void apply(NormalText& text) const override {
    if (is_ascii(text.text)) return apply_to_ascii(text);
    const std::string whole = std::move(text.text);
    std::string out;
    out.reserve(whole.size() + whole.size() / 8);
    for (size_t begin = 0, end = 0; begin < whole.size(); begin = end) {
      const bool is_plain = static_cast<signed char>(whole[begin]) >= 0;
      while (end < whole.size() && (static_cast<signed char>(whole[end]) >= 0) == is_plain) ++end;
      NormalText part{{}, text.starts_input};
      if (is_plain) {
        part.text.assign(whole, begin, end - begin);
        apply_to_ascii(part);
        out += part.text;
      } else if (!put_short_cuts(std::string_view(whole).substr(begin, end - begin), out)) {
        part.text.assign(whole, begin, end - begin);
        apply_to_any(part);
        out += part.text;
      }
      if (begin == 0) text.starts_input = part.starts_input;
    }
    text.text = std::move(out);
  }

  // One step after the other, for any text.
  void apply_to_any(NormalText& text) const {
    if (options_.clean_text) rewrite(text, put_clean);
    if (options_.handle_chinese_chars) {
      rewrite(text, [](uint32_t c, std::string& out) {
        const bool is_chinese = is_in(kChinese, c);
        if (is_chinese) out += ' ';
        append_utf8(c, out);
        if (is_chinese) out += ' ';
      });
    }
    if (options_.strip_accents) {
      to_unicode_form(UnicodeForm::kNfd, text.text);
      rewrite(text, [](uint32_t c, std::string& out) {
        if (c < 0x80 || !is_in(kNonspacingMarks, c)) append_utf8(c, out);
      });
    }
    if (options_.lowercase) rewrite(text, put_lower_case);
  }

 private:
  static constexpr int16_t kDropped = -1;

  // The same for a text of characters whose results are known; else false, and nothing is put.
  bool put_short_cuts(std::string_view text, std::string& out) const {
    const size_t before = out.size();
    for (size_t i = 0; i < text.size();) {
      const auto byte = static_cast<uint8_t>(text[i]);
      const size_t length = utf8_length(text[i]);
      const std::string_view character = text.substr(i, length);
      if (byte < 0xE0 && !short_cuts_[decode_utf8(character).code_point].empty()) {
        out += short_cuts_[decode_utf8(character).code_point];
      } else if (byte >= 0xE5 && byte <= 0xE8) {  // ideographs of U+5000 to U+8FFF
        if (options_.handle_chinese_chars) out += ' ';
        out += character;
        if (options_.handle_chinese_chars) out += ' ';
      } else {
        out.resize(before);
        return false;
      }
      i += length;
    }
    return true;
  }

  static void put_clean(uint32_t c, std::string& out) {
    const bool is_line_or_tab = c == '\t' || c == '\n' || c == '\r';
    if (!is_line_or_tab && is_in(kControls, c)) return;
    append_utf8(is_space(c) ? ' ' : c, out);
  }

  // All steps at once.
  void apply_to_ascii(NormalText& text) const {
    std::string& whole = text.text;
    if (!whole.empty() && ascii_[static_cast<uint8_t>(whole[0])] == kDropped) text.starts_input = false;
    size_t size = 0;
    for (const char c : whole) {
      const int16_t result = ascii_[static_cast<uint8_t>(c)];
      if (result != kDropped) whole[size++] = static_cast<char>(result);
    }
    whole.resize(size);
  }

  // BERT's blocks of Chinese characters, which also omit 2B820–2B91F.
  static constexpr CodePointRange kChinese[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                                {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  Options options_;
  std::array<int16_t, 128> ascii_;  // what a character becomes
  // Of characters below U+0800 that begin anew after whatever precedes them; empty for others.
  std::vector<std::string> short_cuts_ = std::vector<std::string>(0x800);
};

// Spells the bytes in ByteLevel's alphabet.
class ByteLevelNormalizer final : public CharacterNormalizer {
 public:
  void apply(NormalText& text) const override { text.text = spell_bytes(text.text); }
};

}  // namespace

std::unique_ptr<Normalizer> make_character_normalizer(std::string_view type, const Json& json, std::string_view where) {
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "BertNormalizer") {
    const bool lowercase = json_get<bool>(json, "lowercase", where);
    return std::make_unique<BertNormalizer>(
        BertNormalizer::Options{.clean_text = json_get<bool>(json, "clean_text", where),
                                .handle_chinese_chars = json_get<bool>(json, "handle_chinese_chars", where),
                                .strip_accents = json_get_or(json, "strip_accents", lowercase, where),
                                .lowercase = lowercase});
  }
  return nullptr;
}

}  // namespace megalith
