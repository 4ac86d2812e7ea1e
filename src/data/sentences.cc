// Sentence splitting; see sentences.h.
#include "data/sentences.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";

// Never the last word of a sentence.
constexpr std::array<std::string_view, 55> kAbbreviations = {
    "adm",  "al",   "approx", "asst", "brig",   "bros", "bzw",  "ca",  "capt", "cf",  "cmdr", "col", "cpl",  "d.h",
    "dept", "dir",  "dr",     "e.g",  "eg",     "esp",  "evtl", "fr",  "gen",  "ggf", "gov",  "hon", "hr",   "i.e",
    "ie",   "inkl", "lt",     "maj",  "messrs", "mlle", "mme",  "mr",  "mrs",  "ms",  "msgr", "mt",  "prof", "rep",
    "rev",  "sen",  "sgt",    "sr",   "sra",    "st",   "supt", "u.a", "vgl",  "viz", "vs",   "z.b", "zzgl"};
static_assert(std::is_sorted(kAbbreviations.begin(), kAbbreviations.end()));

// Not the last word when a number follows.
constexpr std::array<std::string_view, 26> kCounted = {"abs", "art",  "aug", "bd",  "ch",  "chap", "dec", "eq",  "feb",
                                                       "fig", "figs", "jan", "kap", "no",  "nos",  "nov", "nr",  "oct",
                                                       "p",   "pp",   "s",   "sec", "sep", "sept", "vol", "vols"};
static_assert(std::is_sorted(kCounted.begin(), kCounted.end()));

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::binary_search(words.begin(), words.end(), word);
}

// Length of the mark that `text` begins with, or 0.
template <size_t N>
size_t mark_at(std::string_view text, const std::array<std::string_view, N>& marks) {
  for (const std::string_view mark : marks) {
    if (text.starts_with(mark)) return mark.size();
  }
  return 0;
}

constexpr std::array<std::string_view, 4> kEnds = {".", "!", "?", "\u2026"};
constexpr std::array<std::string_view, 4> kWideEnds = {"\u3002", "\uff01", "\uff1f", "\uff61"};
constexpr std::array<std::string_view, 11> kClosing = {"\"",     "'",      ")",      "]",      "}",     "\u201d",
                                                       "\u2019", "\u00bb", "\u300d", "\u300f", "\uff09"};

bool begins_small(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  return length > 0 && utf8proc_category(code_point) == UTF8PROC_CATEGORY_LL;
}

// The word that ends just before `end`, without opening marks.
std::string_view word_before(std::string_view text, size_t begin, size_t end) {
  size_t start = end;
  while (start > begin && !is_blank(text[start - 1])) --start;
  while (start < end && std::string_view("\"'([{").find(text[start]) != std::string_view::npos) ++start;
  return text.substr(start, end - start);
}

// True if one full stop after `word` ends no sentence. is_first: the word begins a sentence or a line.
bool is_no_end(std::string_view word, bool is_first, std::string_view next) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z') return true;
  if (is_first && !word.empty() && word.size() <= 3 && std::all_of(word.begin(), word.end(), is_digit)) return true;
  const std::string lower = lower_case(word);
  if (is_one_of(kAbbreviations, lower)) return true;
  return !next.empty() && is_digit(next[0]) && is_one_of(kCounted, lower);
}

// End of the sentence at `begin`, before the blanks after it.
size_t end_of_sentence(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size();) {
    if (text[at] == '\n') {
      size_t next = at + 1;
      while (next < text.size() && (text[next] == ' ' || text[next] == '\t' || text[next] == '\r')) ++next;
      if (next < text.size() && text[next] == '\n') return at;
      at = next;
      continue;
    }
    const size_t first = at;
    bool is_wide = false, is_end = false;
    while (at < text.size()) {
      const size_t wide = mark_at(text.substr(at), kWideEnds);
      const size_t length = wide > 0 ? wide : mark_at(text.substr(at), kEnds);
      if (length == 0) break;
      is_end = true;
      is_wide = is_wide || wide > 0;
      at += length;
    }
    if (!is_end) {
      ++at;
      continue;
    }
    const bool is_one_stop = at == first + 1 && text[first] == '.';
    const size_t before_closing = at;
    while (const size_t length = mark_at(text.substr(at), kClosing)) at += length;
    if (is_wide) return at;
    if (at < text.size() && !is_blank(text[at])) continue;
    const size_t next_word = std::min(text.find_first_not_of(kBlanks, at), text.size());
    const std::string_view blanks = text.substr(at, next_word - at), next = text.substr(next_word);
    if (std::count(blanks.begin(), blanks.end(), '\n') > 1) return at;
    if (begins_small(next)) continue;
    if (is_one_stop && at == before_closing) {
      const std::string_view word = word_before(text, begin, first);
      const auto word_begin = static_cast<size_t>(word.data() - text.data());
      const bool is_first = word_begin == begin || text[word_begin - 1] == '\n';
      if (!next.empty() && is_no_end(word, is_first, next)) continue;
    }
    return at;
  }
  return text.size();
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text, bool keep_newlines) {
  std::vector<std::string_view> sentences;
  for_each_sentence(text, keep_newlines, [&](std::string_view sentence) { sentences.push_back(sentence); });
  return sentences;
}

void for_each_sentence(std::string_view text, bool keep_newlines,
                       const std::function<void(std::string_view)>& on_sentence) {
  size_t begin = text.find_first_not_of(kBlanks);
  while (begin < text.size()) {
    size_t end = end_of_sentence(text, begin);
    const size_t next = std::min(text.find_first_not_of(kBlanks, end), text.size());
    while (end > begin && is_blank(text[end - 1])) --end;
    if (keep_newlines) {
      const size_t line_break = text.substr(end, next - end).rfind('\n');
      if (line_break != std::string_view::npos) end += line_break + 1;
    }
    on_sentence(text.substr(begin, end - begin));
    begin = next;
  }
}

}  // namespace megalith
