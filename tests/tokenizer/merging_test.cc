// The fast ways of cutting and merging against the slow ones.
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/byte_trie.h"
#include "tokenizer/known_pattern.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/unigram.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cuts.h"

namespace megalith {
namespace {

// Characters of every class that the patterns tell apart, many of them next to each other.
std::string random_text(std::mt19937& random, size_t length) {
  constexpr std::string_view kParts[] = {
      "a",   "Z",    "é",      "日",     "s",      "ll",     "1",      "٣",  "½",          " ",       "  ",
      "\t",  "\n",   "\r\n",   "\r",     "\u00a0", "\u3000", "'",      "'s", "'LL",        "'\u017F", "!",
      "...", "🦙", "\u0301", "\u200d", "\u180e", "\u0085", "\u2028", "\0", "\U00031350", "ſ"};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

std::vector<std::string> pieces_by_regex(std::string_view pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  Regex::Scanner scanner(regex, text);
  std::vector<std::string> pieces;
  for (size_t begin, end; scanner.next(begin, end);) pieces.push_back(text.substr(begin, end - begin));
  return pieces;
}

TEST(KnownPattern, CutsAsTheRegularExpressionDoes) {
  const std::string qwen = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                           R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
  for (const std::string& pattern : {std::string(kGpt2Pattern), std::string(kLlama3Pattern), qwen}) {
    const auto known = find_known_pattern(pattern);
    ASSERT_TRUE(known) << pattern;
    std::mt19937 random(7);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_text(random, 1 + random() % 20);
      std::vector<std::string> pieces;
      for (size_t begin = 0; begin < text.size(); begin += pieces.back().size()) {
        const size_t end = match_end(*known, text, begin);
        ASSERT_GT(end, begin);
        pieces.push_back(text.substr(begin, end - begin));
      }
      ASSERT_EQ(pieces, pieces_by_regex(pattern, text)) << pattern << " on " << text;
    }
  }
  EXPECT_FALSE(find_known_pattern(R"(\w+)"));
}

TEST(KnownPattern, AgreesWithTheRegularExpressionOnEveryCharacter) {
  const auto known = find_known_pattern(kLlama3Pattern);
  const Regex regex(kLlama3Pattern, "test");
  std::string text;
  for (uint32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    append_utf8(c, text);
    text += c % 3 == 0 ? " a" : "a";
  }
  Regex::Scanner scanner(regex, text);
  size_t at = 0;
  for (size_t begin, end; scanner.next(begin, end); at = end) {
    ASSERT_EQ(begin, at);
    ASSERT_EQ(match_end(*known, text, begin), end) << "at byte " << begin << ": " << text.substr(begin, 12);
  }
  EXPECT_EQ(at, text.size());
}

TEST(MergeTable, QueueAndScanAgree) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    // Merges over few symbols, so that many pairs match; ranks repeat.
    MergeTable merges(40);
    for (int32_t i = 0; i < 40; ++i) {
      merges.insert(static_cast<int32_t>(random() % (4 + i)), static_cast<int32_t>(random() % (4 + i)),
                    {static_cast<uint32_t>(random() % 30), 4 + i});
    }
    std::vector<int32_t> by_scan(random() % 64), by_queue;
    for (int32_t& symbol : by_scan) symbol = static_cast<int32_t>(random() % 4);
    by_queue = by_scan;
    by_scan.resize(merges.merge_by_scanning(by_scan.data(), by_scan.size()));
    by_queue.resize(merges.merge_by_queue(by_queue.data(), by_queue.size()));
    ASSERT_EQ(by_scan, by_queue) << "round " << round;
  }
}

TEST(ByteTrie, FindsTheLongestKey) {
  ByteTrie trie;
  EXPECT_TRUE(trie.is_empty());
  EXPECT_EQ(trie.longest_prefix("abc").value, -1);
  for (int32_t i = 0; i < 500; ++i) trie.insert("key" + std::to_string(i), i);
  trie.insert("k", 1000);
  EXPECT_EQ(trie.longest_prefix("key499!").value, 499);
  EXPECT_EQ(trie.longest_prefix("key499!").length, 6u);
  EXPECT_EQ(trie.longest_prefix("key").value, 1000);
  EXPECT_EQ(trie.longest_prefix("").value, -1);
}

TEST(WordCuts, CutOnlyWhereAWordBegins) {
  std::vector<std::string> words;
  for_each_word("▁▁a▁b▁▁c▁", [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_EQ(words, (std::vector<std::string>{"▁▁a", "▁b", "▁▁c", "▁"}));
  EXPECT_TRUE(has_inner_word("a▁"));
  EXPECT_FALSE(has_inner_word("▁▁a"));
}

// All cuts of a short text, the first of the best sums in the order in which they are found.
double best_by_trying(std::string_view text, const ByteTrie& trie, const std::vector<double>& scores) {
  if (text.empty()) return 0;
  double best = -1000 + best_by_trying(text.substr(1), trie, scores);
  for (size_t length = 1; length <= text.size(); ++length) {
    const ByteTrie::Match match = trie.longest_prefix(text.substr(0, length));
    if (match.length != length) continue;
    best = std::max(best, scores[static_cast<size_t>(match.value)] + best_by_trying(text.substr(length), trie, scores));
  }
  return best;
}

TEST(Unigram, PathHasTheLargestSum) {
  std::mt19937 random(11);
  ByteTrie trie;
  std::vector<double> scores;
  for (const char* token : {"a", "b", "ab", "ba", "aab", "bb", "abab", "c"}) {
    trie.insert(token, static_cast<int32_t>(scores.size()));
    scores.push_back(-0.25 * static_cast<double>(random() % 20));
  }
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (size_t i = 0; i < 1 + random() % 10; ++i) text += "abcx"[random() % 4];
    double sum = 0;
    size_t at = 0;
    for (const UnigramStep& step : unigram_path<double>(
             text, trie, -1000.0, [&](int32_t id, size_t) { return scores[static_cast<size_t>(id)]; })) {
      EXPECT_EQ(step.begin, at);
      at = step.end;
      sum += step.value < 0 ? -1000.0 : scores[static_cast<size_t>(step.value)];
    }
    EXPECT_EQ(at, text.size());
    EXPECT_DOUBLE_EQ(sum, best_by_trying(text, trie, scores)) << text;
  }
}

}  // namespace
}  // namespace megalith
