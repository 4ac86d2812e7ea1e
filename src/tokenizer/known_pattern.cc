// See known_pattern.h. Comments name the alternatives of the regular expression, in its order.
#include "tokenizer/known_pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tokenizer/ascii_cuts.h"
#include "tokenizer/unicode_additions.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

// What a character is: one of these, and perhaps kIdeograph besides.
enum Trait : uint16_t {
  kUpper = 1,         // \p{Lu}, \p{Lt}
  kLower = 2,         // \p{Ll}
  kOtherLetter = 4,   // \p{Lm}, \p{Lo}
  kNewLetter = 8,     // \p{L}, but of none of these kinds to the engine: see unicode_additions.h
  kMark = 16,         // \p{M}
  kPunctOrSymbol = 32,  // \p{P}, \p{S}
  kOther = 64,
  kNumber = 128,
  kBlank = 256,  // \s but \r and \n
  kLineEnd = 512,
  kIdeograph = 1024,  // [一-龥぀-ゟ゠-ヿ]
};
constexpr unsigned kLetter = kUpper | kLower | kOtherLetter | kNewLetter;
constexpr unsigned kSymbol = kMark | kPunctOrSymbol | kOther;  // [^\s\p{L}\p{N}]
constexpr unsigned kSpace = kBlank | kLineEnd;

uint16_t compute_trait(uint32_t c) {
  if (c == '\r' || c == '\n') return kLineEnd;
  if (is_space(c)) return kBlank;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT) return kUpper;
  if (category == UTF8PROC_CATEGORY_LL) return kLower;
  if (category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO) return kOtherLetter;
  if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) return kMark;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return kNumber;
  if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO) return kPunctOrSymbol;
  return kOther;
}

// The traits of every code point, computed once: 2.2 MB, of which only the text's characters are touched.
const uint16_t* trait_table() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> traits(0x110000, kOther);
    // In planes 3 to 16 only the first ideographs, and tags and selectors, are more; asking of each takes milliseconds.
    for (const CodePointRange& range : {CodePointRange{0, 0x33FFF}, {0xE0000, 0xE0FFF}}) {
      for (uint32_t c = range.first; c <= range.last; ++c) traits[c] = compute_trait(c);
    }
    struct Row {
      char category;
      Trait trait;
    };
    constexpr Row kRows[] = {
        {'L', kNewLetter}, {'N', kNumber}, {'P', kPunctOrSymbol}, {'S', kPunctOrSymbol}, {'M', kMark}};
    for (const Row& row : kRows) {
      for (const CodePointRange& range : new_code_points(row.category)) {
        for (uint32_t c = range.first; c <= range.last; ++c) traits[c] = row.trait;
      }
    }
    for (const CodePointRange& range : {CodePointRange{0x4E00, 0x9FA5}, {0x3040, 0x30FF}}) {
      for (uint32_t c = range.first; c <= range.last; ++c) traits[c] = static_cast<uint16_t>(traits[c] | kIdeograph);
    }
    return traits;
  }();
  return table.data();
}

// Eight characters at a time. Bit 7 of each byte is set if the byte is from `first` to `last`, which are ASCII.
constexpr uint64_t kOnes = 0x0101010101010101, kHighBits = 0x8080808080808080;
uint64_t load_eight(const char* text) {
  uint64_t eight = 0;
  std::memcpy(&eight, text, sizeof eight);
  return eight;
}
uint64_t bytes_in_range(uint64_t eight, uint8_t first, uint8_t last) {
  const uint64_t low = eight & ~kHighBits;
  return (low + kOnes * (0x80u - first)) & ~(low + kOnes * (0x7Fu - last)) & ~eight & kHighBits;
}

// kEndsAtIdeographs: these are ideographs only, no letters or symbols, and they and numbers end a text
template <bool kEndsAtIdeographs>
struct ScanOf {
  std::string_view text;
  const uint16_t* traits = trait_table();

  // The traits of the character at i and its length in bytes.
  unsigned at(size_t i, size_t& length) const {
    const unsigned all = all_at(i, length);
    return kEndsAtIdeographs && (all & kIdeograph) != 0 ? unsigned{kIdeograph} : all;
  }
  unsigned all_at(size_t i, size_t& length) const { return traits[valid_code_point(text, i, length)]; }
  bool is(unsigned wanted, size_t i, size_t& length) const { return i < text.size() && (at(i, length) & wanted) != 0; }

  // The end of the run of wanted characters from i, of at most `most`.
  size_t run(unsigned wanted, size_t i, size_t most = SIZE_MAX) const {
    for (size_t length = 0; most > 0 && is(wanted, i, length); --most) i += length;
    return i;
  }

  // The end of the run of letters (and perhaps marks) from i; small and capital ASCII letters only if wanted.
  size_t letters(unsigned wanted, size_t i) const {
    while (i + 8 <= text.size()) {
      const uint64_t eight = load_eight(text.data() + i);
      uint64_t others = kHighBits;
      if (wanted & kLower) others &= ~bytes_in_range(eight, 'a', 'z');
      if (wanted & kUpper) others &= ~bytes_in_range(eight, 'A', 'Z');
      if (others == 0) {
        i += 8;
        continue;
      }
      i += static_cast<size_t>(std::countr_zero(others)) / 8;
      if (static_cast<uint8_t>(text[i]) < 0x80) return i;
      for (size_t length = 0; i < text.size() && static_cast<uint8_t>(text[i]) >= 0x80; i += length) {
        if ((at(i, length) & wanted) == 0) return i;
      }
    }
    return run(wanted, i);
  }

  // \s+(?!\S)|\s+ from i, for white space ending at `end`: all of it at the end of the text, else all but its last
  // character, unless it is a single one.
  size_t blanks(size_t i, size_t end) const {
    size_t length = 0;
    if (end == text.size() || (kEndsAtIdeographs && is(kNumber | kIdeograph, end, length))) return end;
    size_t last = end - 1;
    while (last > i && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    return last > i ? last : end;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+: to the last line end of the white space, if it has one. i if none begins there.
  size_t white_space(size_t i) const {
    size_t end = i, after_line = 0;
    for (size_t length = 0;;) {
      if (is(kLineEnd, end, length)) {
        after_line = end + length;
      } else if (!is(kBlank, end, length)) {
        break;
      }
      end += length;
    }
    if (end == i) return i;
    return after_line > 0 ? after_line : blanks(i, end);
  }
};
using Scan = ScanOf<false>;
using DeepSeekScan = ScanOf<true>;

// The matchers: the end of the match that begins at `begin`, or `begin` if there is none.

size_t match_gpt2(const Scan& scan, size_t begin) {
  const std::string_view text = scan.text;
  if (text[begin] == '\'') {
    if (const size_t end = contraction_end(text, begin, false)) return end;
  }
  size_t length = 0;
  // ' ?\p{L}+', ' ?\p{N}+' and ' ?[^\s\p{L}\p{N}]+'
  const size_t first = begin + (text[begin] == ' ' && begin + 1 < text.size() ? 1 : 0);
  const unsigned trait = scan.at(first, length);
  if (trait & kLetter) return scan.letters(kLetter, first + length);
  for (const unsigned wanted : {unsigned{kNumber}, kSymbol}) {
    if (trait & wanted) return scan.run(wanted, first + length);
  }
  return scan.blanks(begin, scan.run(kSpace, begin));
}

// Llama 3's pattern; Qwen2's takes numbers one digit at a time.
template <size_t kMostDigits>
size_t match_llama3(const Scan& scan, size_t begin) {
  const std::string_view text = scan.text;
  size_t length = 0, next_length = 0;
  const unsigned first = scan.at(begin, length);
  if (first & kLetter) return scan.letters(kLetter, begin + length);
  if (text[begin] == '\'') {
    if (const size_t end = contraction_end(text, begin, true)) return end;
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (!(first & (kLineEnd | kNumber)) && scan.is(kLetter, begin + length, next_length)) {
    return scan.letters(kLetter, begin + length + next_length);
  }
  if (first & kNumber) return scan.run(kNumber, begin, kMostDigits);
  // ' ?[^\s\p{L}\p{N}]+[\r\n]*'
  const size_t symbols = begin + (text[begin] == ' ' ? 1 : 0);
  if (scan.is(kSymbol, symbols, length)) return scan.run(kLineEnd, scan.run(kSymbol, symbols + length));
  return scan.white_space(begin);
}

// GPT-4o's pattern, which keeps words of mixed case apart; Mistral's Tekken has no contractions and single digits.
template <bool kContractions, size_t kMostDigits>
size_t match_o200k(const Scan& scan, size_t begin) {
  constexpr unsigned kBoth = kOtherLetter | kMark;  // count as small and as capital
  const std::string_view text = scan.text;
  size_t length = 0;
  const unsigned first = scan.at(begin, length);
  // [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+, or the same with * and + exchanged
  const bool has_prefix = !(first & (kLetter | kNumber | kLineEnd));
  const size_t word = begin + (has_prefix ? length : 0);
  size_t end = scan.letters(kUpper, word), after_both = word;
  for (size_t next = 0; end < text.size(); end += next) {
    const unsigned trait = scan.at(end, next);
    if (trait & kBoth) {
      after_both = end + next;
    } else if (!(trait & kUpper)) {
      break;
    }
  }
  const size_t small_end = scan.letters(kLower | kBoth, end);
  if (small_end > end) {
    end = small_end;
  } else if (after_both > word) {
    end = after_both;  // the small part is the last character that can be either
  } else if (first & kMark) {
    end = word;  // the mark is no prefix but such a character
  }
  if (end > word || (first & kMark)) {
    if (kContractions && end < text.size() && text[end] == '\'') {
      if (const size_t longer = contraction_end(text, end, true)) return longer;
    }
    return end;
  }
  if (first & kNumber) return scan.run(kNumber, begin, kMostDigits);
  // ' ?[^\s\p{L}\p{N}]+[\r\n/]*'
  const size_t symbols = begin + (text[begin] == ' ' ? 1 : 0);
  if (scan.is(kSymbol, symbols, length)) {
    end = scan.run(kSymbol, symbols + length);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || text[end] == '/')) ++end;
    return end;
  }
  return scan.white_space(begin);
}

template <bool kEndsAtIdeographs>
size_t match_deepseek(const ScanOf<kEndsAtIdeographs>& scan, size_t begin) {
  const std::string_view text = scan.text;
  const auto is_ascii_letter = [&](size_t i) {
    return i < text.size() && static_cast<uint8_t>((text[i] | 0x20) - 'a') < 26;
  };
  size_t length = 0, next_length = 0;
  const unsigned first = scan.at(begin, length);
  // [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+
  if ((first & kPunctOrSymbol) && length == 1 && is_ascii_letter(begin + 1)) {
    size_t end = begin + 2;
    while (is_ascii_letter(end)) ++end;
    return end;
  }
  // [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
  if (first & (kLetter | kMark)) return scan.letters(kLetter | kMark, begin + length);
  if (!(first & (kLineEnd | kPunctOrSymbol)) && scan.is(kLetter | kMark, begin + length, next_length)) {
    return scan.letters(kLetter | kMark, begin + length + next_length);
  }
  // ' ?[\p{P}\p{S}]+[\r\n]*'
  const size_t symbols = begin + (text[begin] == ' ' ? 1 : 0);
  if (scan.is(kPunctOrSymbol, symbols, length)) return scan.run(kLineEnd, scan.run(kPunctOrSymbol, symbols + length));
  return scan.white_space(begin);
}

// \p{N}{1,3}
size_t match_numbers(const Scan& scan, size_t begin) { return scan.run(kNumber, begin, 3); }
// [一-龥぀-ゟ゠-ヿ]+
size_t match_cjk(const Scan& scan, size_t begin) { return scan.run(kIdeograph, begin); }

// DeepSeek's three splits at once: a number, ideographs, or a match or the text before the next one.
size_t match_deepseek_splits(const DeepSeekScan& scan, size_t begin) {
  size_t length = 0;
  for (size_t i = begin; i < scan.text.size(); i += length) {
    const unsigned trait = scan.at(i, length);
    if (trait & (kNumber | kIdeograph)) {
      if (i > begin) return i;
      return trait & kNumber ? scan.run(kNumber, i, 3) : scan.run(kIdeograph, i);
    }
    if (const size_t end = match_deepseek(scan, i); end > i) return i > begin ? i : end;
  }
  return scan.text.size();
}

// The first number, or ideograph, at or after i.
template <Trait kWanted>
size_t find_first(const Scan& scan, size_t i) {
  for (size_t length = 0; i < scan.text.size() && !scan.is(kWanted, i, length);) {
    i += length;
    for (; i + 8 <= scan.text.size(); i += 8) {
      const uint64_t eight = load_eight(scan.text.data() + i);
      if ((eight & kHighBits) != 0 || (kWanted == kNumber && bytes_in_range(eight, '0', '9') != 0)) break;
    }
  }
  return i;
}

using Matcher = size_t (*)(const Scan&, size_t);

// See FindEnds. match: for stretches that are not ASCII, and pieces longer than 64 characters
template <AsciiRules rules, typename AnyScan, size_t (*match)(const AnyScan&, size_t)>
size_t find_ends(std::string_view text, size_t& at, std::span<size_t> ends) {
  const AnyScan scan{text};
  const auto is_ascii_at = [&](size_t i) { return i >= text.size() || static_cast<uint8_t>(text[i]) < 0x80; };
  size_t count = 0;
  const auto put = [&](size_t end) { ends[count++] = at = end; };
  while (at < text.size() && count + kFewestEnds <= ends.size()) {
    if (is_ascii_at(at) && is_ascii_at(at + 1)) {
      std::array<char, 64> rest;
      const std::string_view block = text.substr(at, rest.size());
      if (block.size() < rest.size()) {
        rest.fill(0);
        std::memcpy(rest.data(), block.data(), block.size());
      }
      const AsciiMasks masks = find_ascii_masks(block.size() < rest.size() ? rest.data() : block.data());
      const uint64_t strange = masks.other | (rules.digits_end_blanks ? masks.control : 0);
      const size_t size = std::min(block.size(), static_cast<size_t>(std::countr_zero(strange)));
      const size_t begin = at;
      uint64_t starts = size > 1 ? ascii_piece_starts<rules>(block.substr(0, size), masks) : 0;
      for (; starts != 0; starts &= starts - 1) put(begin + static_cast<size_t>(std::countr_zero(starts)));
      if (at > begin && size == rest.size()) continue;
    }
    size_t end = match(scan, at);
    if (end == at) {  // the text before the next match
      do end += utf8_length(text[end]);
      while (end < text.size() && match(scan, end) == end);
    }
    put(end);
  }
  return count;
}

// skip(scan, i): the first place at or after i where a match may begin
template <Matcher match, typename Skip>
void split_by(const TextPiece& piece, PieceSink sink, Skip skip) {
  const Scan scan{piece.text};
  const auto put = [&](size_t begin, size_t end) {
    if (begin < end) sink({piece.text.substr(begin, end - begin), piece.starts_input && begin == 0});
  };
  size_t done = 0;
  for (size_t i = skip(scan, size_t{0}); i < piece.text.size(); i = skip(scan, i)) {
    const size_t end = match(scan, i);
    if (end == i) {
      i += utf8_length(piece.text[i]);
      continue;
    }
    put(done, i);
    put(i, end);
    done = i = end;
  }
  put(done, piece.text.size());
}

}  // namespace

std::optional<KnownPattern> find_known_pattern(std::string_view expression) {
  struct Row {
    KnownPattern pattern;
    std::string_view expression;
  };
  constexpr Row kRows[] = {
      {KnownPattern::kGpt2, kGpt2Pattern},
      {KnownPattern::kLlama3, kLlama3Pattern},
      {KnownPattern::kQwen2, kQwen2Pattern},
      {KnownPattern::kO200k, kO200kPattern},
      {KnownPattern::kTekken, kTekkenPattern},
      {KnownPattern::kNumbers, R"(\p{N}{1,3})"},
      {KnownPattern::kCjk, "[一-龥\u3040-ゟ゠-ヿ]+"},
      {KnownPattern::kDeepSeek,
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
       R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
  };
  std::string spelt;  // DeepSeek's own file holds the line ends themselves
  for (const char c : expression) {
    if (c == '\r' || c == '\n') {
      spelt += c == '\r' ? "\\r" : "\\n";
    } else {
      spelt += c;
    }
  }
  for (const Row& row : kRows) {
    if (spelt == row.expression) return row.pattern;
  }
  return std::nullopt;
}

void split_known(KnownPattern pattern, const TextPiece& piece, PieceSink sink) {
  const auto stay = [](const Scan&, size_t i) { return i; };
  switch (pattern) {
    case KnownPattern::kGpt2:
      return split_by<match_gpt2>(piece, sink, stay);
    case KnownPattern::kLlama3:
      return split_by<match_llama3<3>>(piece, sink, stay);
    case KnownPattern::kQwen2:
      return split_by<match_llama3<1>>(piece, sink, stay);
    case KnownPattern::kO200k:
      return split_by<match_o200k<true, 3>>(piece, sink, stay);
    case KnownPattern::kTekken:
      return split_by<match_o200k<false, 1>>(piece, sink, stay);
    case KnownPattern::kNumbers:
      return split_by<match_numbers>(piece, sink, find_first<kNumber>);
    case KnownPattern::kCjk:
      return split_by<match_cjk>(piece, sink, find_first<kIdeograph>);
    case KnownPattern::kDeepSeek:
      return split_by<match_deepseek<false>>(piece, sink, stay);
  }
}

FindEnds find_ends_of(std::span<const KnownPattern> splits) {
  constexpr KnownPattern kThree[] = {KnownPattern::kNumbers, KnownPattern::kCjk, KnownPattern::kDeepSeek};
  if (std::ranges::equal(splits, kThree)) return find_ends<kDeepSeekRules, DeepSeekScan, match_deepseek_splits>;
  if (splits.size() != 1) return nullptr;
  switch (splits[0]) {
    case KnownPattern::kGpt2:
      return find_ends<kGpt2Rules, Scan, match_gpt2>;
    case KnownPattern::kLlama3:
      return find_ends<kLlama3Rules, Scan, match_llama3<3>>;
    case KnownPattern::kQwen2:
      return find_ends<kQwen2Rules, Scan, match_llama3<1>>;
    case KnownPattern::kO200k:
      return find_ends<kO200kRules, Scan, match_o200k<true, 3>>;
    case KnownPattern::kTekken:
      return find_ends<kTekkenRules, Scan, match_o200k<false, 1>>;
    case KnownPattern::kNumbers:
    case KnownPattern::kCjk:
    case KnownPattern::kDeepSeek:
      return nullptr;  // these leave text between their matches
  }
  return nullptr;
}

}  // namespace megalith
