// Cuts ASCII text 64 characters at a time: each class of characters becomes a word of bits, and shifts and additions
// say where the patterns of known_pattern.h begin a piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megalith {

// Bit i is set if character i of 64 is of the class.
struct AsciiMasks {
  uint64_t capital = 0, small = 0, digit = 0;
  uint64_t space = 0, blank = 0;  // ' '; all of \s but \r and \n
  uint64_t line_end = 0, quote = 0, slash = 0;
  uint64_t control = 0;  // neither printable nor \s
  uint64_t other = 0;    // not ASCII
  bool operator==(const AsciiMasks&) const = default;
};
// The masks of text[0, 64), in the processor's widest way, and one character after the other.
AsciiMasks find_ascii_masks(const char* text);
AsciiMasks find_ascii_masks_one_by_one(const char* text);

// How a pattern differs from the others.
struct AsciiRules {
  enum Contractions { kNone, kExact, kAnyCase, kSuffix };  // kSuffix: in any case, at the end of a word
  bool only_space_joins = false;   // ' ?' before letters and digits too, and line ends are like other blanks: GPT-2
  bool is_cased = false;           // a capital after a small letter begins a piece
  bool takes_slashes = false;      // symbols take [\r\n/]* with them, not only [\r\n]*
  bool digits_end_blanks = false;  // blanks before a digit are one piece
  Contractions contractions = kNone;
  int most_digits = 3;  // in a piece; 0: any number
};
inline constexpr AsciiRules kGpt2Rules{.only_space_joins = true, .contractions = AsciiRules::kExact, .most_digits = 0};
inline constexpr AsciiRules kLlama3Rules{.contractions = AsciiRules::kAnyCase};
inline constexpr AsciiRules kQwen2Rules{.contractions = AsciiRules::kAnyCase, .most_digits = 1};
inline constexpr AsciiRules kO200kRules{.is_cased = true, .takes_slashes = true, .contractions = AsciiRules::kSuffix};
inline constexpr AsciiRules kTekkenRules{.is_cased = true, .takes_slashes = true, .most_digits = 1};
inline constexpr AsciiRules kDeepSeekRules{.digits_end_blanks = true};

// Where pieces begin within a text of 1 to 64 characters, all ASCII, which begins with one: the bits after the first,
// for as far as what follows the text cannot change them. For DeepSeek the text has no control characters.
template <AsciiRules rules>
uint64_t ascii_piece_starts(std::string_view text, const AsciiMasks& masks);

// 's|'t|'re|'ve|'m|'ll|'d at i, the index of an apostrophe: its end; 0 if none matches.
size_t contraction_end(std::string_view text, size_t i, bool ignore_case);

}  // namespace megalith
