// See ascii_cuts.h.
#include "tokenizer/ascii_cuts.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megalith {
namespace {

#if defined(__x86_64__)

// Every x86-64 has SSE2: four times sixteen characters.
AsciiMasks find_ascii_masks_sse2(const char* text) {
  AsciiMasks masks;
  const auto bytes = [](int value) { return _mm_set1_epi8(static_cast<char>(value)); };
  for (int part = 0; part < 4; ++part) {
    const __m128i at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text) + part);
    const auto put = [&](uint64_t& mask, __m128i found) {
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(found))) << 16 * part;
    };
    // Comparisons are signed: characters above ASCII are negative.
    const auto within = [&](int first, int last) {
      return _mm_and_si128(_mm_cmpgt_epi8(at, bytes(first - 1)), _mm_cmplt_epi8(at, bytes(last + 1)));
    };
    const __m128i line_end = _mm_or_si128(_mm_cmpeq_epi8(at, bytes('\n')), _mm_cmpeq_epi8(at, bytes('\r')));
    const __m128i space = _mm_cmpeq_epi8(at, bytes(' '));
    const __m128i white = _mm_or_si128(space, within('\t', '\r'));
    put(masks.capital, within('A', 'Z'));
    put(masks.small, within('a', 'z'));
    put(masks.digit, within('0', '9'));
    put(masks.space, space);
    put(masks.blank, _mm_andnot_si128(line_end, white));
    put(masks.line_end, line_end);
    put(masks.quote, _mm_cmpeq_epi8(at, bytes('\'')));
    put(masks.slash, _mm_cmpeq_epi8(at, bytes('/')));
    const __m128i low = _mm_and_si128(_mm_cmplt_epi8(at, bytes(' ')), _mm_cmpgt_epi8(at, bytes(-1)));
    put(masks.control, _mm_andnot_si128(white, _mm_or_si128(low, _mm_cmpeq_epi8(at, bytes(0x7F)))));
    put(masks.other, at);
  }
  return masks;
}

__attribute__((target("avx512f,avx512bw"))) AsciiMasks find_ascii_masks_avx512(const char* text) {
  const __m512i at = _mm512_loadu_si512(text);
  const auto bytes = [&](int value) __attribute__((target("avx512f,avx512bw"))) {
    return _mm512_set1_epi8(static_cast<char>(value));
  };
  const auto within = [&](int first, int last) __attribute__((target("avx512f,avx512bw"))) {
    return _mm512_cmple_epu8_mask(_mm512_sub_epi8(at, bytes(first)), bytes(last - first));
  };
  const auto is = [&](int value) __attribute__((target("avx512f,avx512bw"))) {
    return _mm512_cmpeq_epi8_mask(at, bytes(value));
  };
  AsciiMasks masks{.capital = within('A', 'Z'),
                   .small = within('a', 'z'),
                   .digit = within('0', '9'),
                   .space = is(' '),
                   .line_end = is('\n') | is('\r'),
                   .quote = is('\''),
                   .slash = is('/'),
                   .other = _mm512_movepi8_mask(at)};
  const uint64_t white = within('\t', '\r') | masks.space;
  masks.blank = white & ~masks.line_end;
  masks.control = (within(0, 0x1F) | is(0x7F)) & ~white;
  return masks;
}

#endif

using FindMasks = AsciiMasks (*)(const char*);
FindMasks widest_masks() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") ? find_ascii_masks_avx512 : find_ascii_masks_sse2;
#else
  return find_ascii_masks_one_by_one;
#endif
}
const FindMasks kWidestMasks = widest_masks();

}  // namespace

AsciiMasks find_ascii_masks(const char* text) { return kWidestMasks(text); }

AsciiMasks find_ascii_masks_one_by_one(const char* text) {
  AsciiMasks masks;
  for (int i = 0; i < 64; ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    const auto put = [&](uint64_t& mask, bool is) { mask |= uint64_t{is} << i; };
    const bool is_line_end = c == '\n' || c == '\r', is_white = c == ' ' || (c >= '\t' && c <= '\r');
    put(masks.capital, c >= 'A' && c <= 'Z');
    put(masks.small, c >= 'a' && c <= 'z');
    put(masks.digit, c >= '0' && c <= '9');
    put(masks.space, c == ' ');
    put(masks.blank, is_white && !is_line_end);
    put(masks.line_end, is_line_end);
    put(masks.quote, c == '\'');
    put(masks.slash, c == '/');
    put(masks.control, (c < ' ' || c == 0x7F) && !is_white);
    put(masks.other, c >= 0x80);
  }
  return masks;
}

size_t contraction_end(std::string_view text, size_t i, bool ignore_case) {
  const auto letter = [&](size_t k) -> char {
    if (i + k >= text.size()) return '\0';
    const char c = text[i + k];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return i + 3;
  if (ignore_case && text.substr(i + 1).starts_with("\u017F")) return i + 3;  // ſ matches s if case is ignored
  return 0;
}

template <AsciiRules rules>
uint64_t ascii_piece_starts(std::string_view text, const AsciiMasks& masks) {
  const auto size = static_cast<int>(text.size());
  const auto below = [](int end) { return end >= 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1; };
  const auto bit = [](size_t at) { return at < 64 ? uint64_t{1} << at : 0; };
  const uint64_t inside = below(size), letter = (masks.capital | masks.small) & inside, digit = masks.digit & inside;
  const uint64_t blank = masks.blank & inside, line_end = masks.line_end & inside, space = masks.space & inside;
  const uint64_t white = blank | line_end, symbol = inside & ~(letter | digit | white);
  const auto first_of = [](uint64_t run) { return run & ~(run << 1); };
  int end = size;  // what is known

  // Symbols take a space before them.
  const uint64_t symbol_start = first_of(symbol) & ~(space << 1);
  uint64_t starts = symbol_start;
  if constexpr (rules.only_space_joins) {
    // \s+(?!\S)|\s+: all but the last, and the last.
    starts |= first_of(white) | (white & ~(white >> 1)) | ((first_of(letter) | first_of(digit)) & ~(space << 1));
  } else {
    // Line ends after symbols belong to these: an addition runs through them. A slash after them too: left to others.
    const uint64_t taken = line_end & ~(line_end + (line_end & symbol << 1));
    if constexpr (rules.takes_slashes) {
      if (const uint64_t slashes = masks.slash & taken << 1) end = std::min(end, std::countr_zero(slashes));
    }
    starts |= first_of(white & ~taken);
    // \s*[\r\n]+ goes up to the last line end; of the blanks after it, the last one joins what follows.
    uint64_t after_line = first_of(blank) & line_end << 1;
    uint64_t before_line = (blank + after_line) & line_end & ~blank;
    for (; before_line != 0; before_line &= before_line - 1) {
      const uint64_t passed = after_line & ((before_line & -before_line) - 1);
      if (passed != 0) after_line &= ~std::bit_floor(passed);
    }
    uint64_t last = blank & ~(blank >> 1) & ~(line_end >> 1);
    if constexpr (rules.digits_end_blanks) last &= ~(digit >> 1);
    starts |= after_line | last;
    // A single symbol, or any blank, joins letters.
    starts |= first_of(letter) & ~(blank << 1) & ~(symbol_start << 1);
    if constexpr (rules.is_cased) starts |= masks.capital & inside & masks.small << 1;
    starts |= rules.most_digits == 1 ? digit : first_of(digit);
    if constexpr (rules.most_digits == 3) {
      const uint64_t fourth = digit & digit << 1 & digit << 2 & digit << 3;
      for (uint64_t more = first_of(digit); more != 0; starts |= more) more = more << 3 & fourth;
    }
  }
  if constexpr (rules.contractions != AsciiRules::kNone) {
    const uint64_t quote = masks.quote & inside;
    if (const uint64_t cut = quote & ~below(std::max(size - 2, 0))) end = std::min(end, std::countr_zero(cut));
    uint64_t found = quote & (rules.contractions == AsciiRules::kSuffix ? letter << 1 : symbol_start);
    for (uint64_t after = 0; found != 0; found &= found - 1) {  // after: where the last contraction ends
      const auto at = static_cast<size_t>(std::countr_zero(found));
      const size_t stop = contraction_end(text, at, rules.contractions != AsciiRules::kExact);
      if (stop == 0) continue;
      if (rules.contractions == AsciiRules::kSuffix && after == at) {  // that suffix has none
        end = std::min(end, static_cast<int>(at));
        break;
      }
      if (rules.contractions == AsciiRules::kSuffix) starts &= ~bit(at);
      for (size_t inner = at + 1; inner < stop; ++inner) starts &= ~bit(inner);
      starts |= bit(stop);
      after = stop;
    }
  }
  // The last white space may go on.
  if (white & bit(static_cast<size_t>(size - 1))) end = std::min(end, size - std::countl_one(white << (64 - size)) + 1);
  return starts & below(end) & ~uint64_t{1};
}

template uint64_t ascii_piece_starts<kGpt2Rules>(std::string_view, const AsciiMasks&);
template uint64_t ascii_piece_starts<kLlama3Rules>(std::string_view, const AsciiMasks&);
template uint64_t ascii_piece_starts<kQwen2Rules>(std::string_view, const AsciiMasks&);
template uint64_t ascii_piece_starts<kO200kRules>(std::string_view, const AsciiMasks&);
template uint64_t ascii_piece_starts<kTekkenRules>(std::string_view, const AsciiMasks&);
template uint64_t ascii_piece_starts<kDeepSeekRules>(std::string_view, const AsciiMasks&);

}  // namespace megalith
