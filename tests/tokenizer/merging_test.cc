// The fast ways of cutting and merging against the slow ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tokenizer/backtracking_bpe.h"
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
      "...", "🦙", "\u0301", "\u200d", "\u180e", "\u0085", "\u2028", "\0", "\U00031350", "ſ",       "/",
      "É",   "Ǆ",   "ǅ",     "ʰ",     "Ы",     "ы",      "か",     "ㇰ", "camelCase",  "UPPER",   "letters",
      "\u1C89", "\u0903", "12345678", "\u0007", "।", "=", "€"};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

// The matches and the text between them.
std::vector<std::string> pieces_by_regex(const Regex& regex, const std::string& text) {
  Regex::Scanner scanner(regex, text);
  std::vector<std::string> pieces;
  size_t done = 0;
  const auto put = [&](size_t end) {
    if (end > done) pieces.push_back(text.substr(done, end - done));
    done = end;
  };
  for (size_t begin = 0, end = 0; scanner.next(begin, end);) {
    put(begin);
    put(end);
  }
  put(text.size());
  return pieces;
}

std::vector<std::string> pieces_of(KnownPattern pattern, const std::string& text) {
  std::vector<std::string> pieces;
  const auto keep = [&](const TextPiece& piece) { pieces.emplace_back(piece.text); };
  split_known(pattern, {text, true}, keep);
  return pieces;
}

const std::string kSmallAndCapital[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)",
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"};
const std::string kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string kPatterns[] = {
    std::string(kGpt2Pattern),
    std::string(kLlama3Pattern),
    kContractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    kSmallAndCapital[0] + kContractions + "?" + kSmallAndCapital[1] + kContractions +
        R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    kSmallAndCapital[0] + kSmallAndCapital[1] + R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\p{N}{1,3})",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

TEST(KnownPattern, CutsAsTheRegularExpressionDoes) {
  for (const std::string& pattern : kPatterns) {
    const auto known = find_known_pattern(pattern);
    ASSERT_TRUE(known) << pattern;
    const Regex regex(pattern, "test");
    std::mt19937 random(7);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_text(random, 1 + random() % 20);
      ASSERT_EQ(pieces_of(*known, text), pieces_by_regex(regex, text)) << pattern << " on " << text;
    }
  }
  EXPECT_FALSE(find_known_pattern(R"(\w+)"));
}

TEST(KnownPattern, AgreesWithTheRegularExpressionOnEveryCharacter) {
  std::string text;
  for (uint32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (c == 0x40000) c = 0xE0000;  // the planes between have no characters
    append_utf8(c, text);
    text += c % 3 == 0 ? " a" : "a";
  }
  for (const std::string& pattern : {kPatterns[1], kPatterns[3], kPatterns[7]}) {
    const std::vector<std::string> ours = pieces_of(*find_known_pattern(pattern), text);
    const std::vector<std::string> theirs = pieces_by_regex(Regex(pattern, "test"), text);
    for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
      ASSERT_EQ(ours[i], theirs[i]) << pattern << " after " << (i > 0 ? ours[i - 1] : "");
    }
    EXPECT_EQ(ours.size(), theirs.size());
  }
}

// Vocabularies of random merges over all bytes, often with merges that rank before those that make their parts.
TEST(BacktrackingBpe, GivesTheTokensThatMergingGives) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::pair<std::string, int32_t>> tokens;
    std::array<int32_t, 256> byte_ids;
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids[static_cast<size_t>(byte)] = byte;
      tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
    }
    struct Row {
      int32_t left, right, id;
    };
    std::vector<Row> rows;
    const auto pick = [&] {
      const size_t made = tokens.size() - 256, i = random() % (3 + made);
      return i < 3 ? 'a' + static_cast<int32_t>(i) : 256 + static_cast<int32_t>(i - 3);
    };
    while (rows.size() < 40) {
      const int32_t left = pick(), right = pick();
      const std::string merged = tokens[static_cast<size_t>(left)].first + tokens[static_cast<size_t>(right)].first;
      const auto same =
          std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == merged; });
      const int32_t id = same == tokens.end() ? static_cast<int32_t>(tokens.size()) : same->second;
      if (merged.size() > 24) continue;
      if (same == tokens.end()) tokens.emplace_back(merged, id);
      rows.push_back({left, right, id});
    }
    for (int i = 0; i < round % 5; ++i) std::swap(rows[random() % 40], rows[random() % 40]);
    MergeTable merges(rows.size());
    // As in tokenizer.json, as in tiktoken, or with many equal ranks.
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t ranks[] = {i, static_cast<size_t>(rows[i].id), i / 5};
      merges.insert(rows[i].left, rows[i].right, {static_cast<uint32_t>(ranks[round % 3]), rows[i].id});
    }
    const Vocabulary vocabulary(tokens);
    const BacktrackingBpe bpe(merges, vocabulary, byte_ids);
    for (int i = 0; i < 60; ++i) {
      std::string text;
      const size_t length = 1 + random() % 70;
      while (text.size() < length) text += "abcabcabx"[random() % 9];
      std::vector<int32_t> expected, found = {-7};
      for (const char c : text) expected.push_back(static_cast<uint8_t>(c));
      expected.resize(merges.merge(expected.data(), expected.size()));
      expected.insert(expected.begin(), -7);
      bpe.encode(text, found);
      ASSERT_EQ(found, expected) << "round " << round << ": " << text;
    }
  }
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
