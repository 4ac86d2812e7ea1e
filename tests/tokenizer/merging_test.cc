// The fast ways of cutting and merging against the slow ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/json.h"
#include "tokenizer/ascii_cuts.h"
#include "tokenizer/backtracking_bpe.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/known_pattern.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/sentencepiece_encoder.h"
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
  std::string with_line_ends = kPatterns[7];
  for (size_t at; (at = with_line_ends.find("\\r\\n")) != std::string::npos;) with_line_ends.replace(at, 4, "\r\n");
  EXPECT_EQ(find_known_pattern(with_line_ends), KnownPattern::kDeepSeek);
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

TEST(AsciiMasks, WidestWayFindsWhatTheSlowOneFinds) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    while (text.size() < 64) text += static_cast<char>(random() % (i % 2 == 0 ? 128 : 256));
    ASSERT_EQ(find_ascii_masks(text.data()), find_ascii_masks_one_by_one(text.data())) << text;
  }
}

// Text like a program's or a letter's, all ASCII but for a character now and then.
std::string random_ascii(std::mt19937& random, size_t length) {
  constexpr std::string_view kParts[] = {
      "word", "Word", "WORD", "camelCase", "x",     " ",   " ",   "  ",    "    ", "\n",   "\n\n", "\r\n",  "\t",  "\t\t",
      "\f",   "'",    "'s",   "'LL",       "'rE",   "'ve", "don't", "!",   ".",    "((",   "/",    "//\n",  "!\n", "1",
      "22",   "4444", "\n ",  " \n",       "\n/",   "_",   "-",   "!\n \n", "=",    "\x01", "\x7F", "'d've"};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += kParts[random() % std::size(kParts)];
  if (random() % 3 == 0) text += random_text(random, 1 + random() % 3);
  return text;
}

TEST(KnownPattern, ManyAtATimeCutsAsOneByOne) {
  const KnownPattern deepseek[] = {KnownPattern::kNumbers, KnownPattern::kCjk, KnownPattern::kDeepSeek};
  std::vector<std::vector<KnownPattern>> all = {{std::begin(deepseek), std::end(deepseek)}};
  for (size_t i = 0; i < 5; ++i) all.push_back({*find_known_pattern(kPatterns[i])});
  EXPECT_EQ(find_ends_of({deepseek, 2}), nullptr);
  for (const std::vector<KnownPattern>& splits : all) {
    const FindEnds find_ends = find_ends_of(splits);
    ASSERT_NE(find_ends, nullptr);
    std::mt19937 random(13);
    for (int round = 0; round < 6000; ++round) {
      std::string text = random_ascii(random, 1 + random() % 60);
      if (round % 4 == 0) text = random_text(random, 1 + random() % 30) + text;
      std::vector<std::string> expected = {text};
      for (const KnownPattern pattern : splits) {
        std::vector<std::string> finer;
        for (const std::string& piece : expected) {
          const std::vector<std::string> parts = pieces_of(pattern, piece);
          finer.insert(finer.end(), parts.begin(), parts.end());
        }
        expected = finer;
      }
      std::vector<std::string> found;
      std::array<size_t, kFewestEnds + 10> ends;
      for (size_t begin = 0, at = 0; const size_t count = find_ends(text, at, ends);) {
        for (size_t i = 0; i < count; begin = ends[i++]) found.push_back(text.substr(begin, ends[i] - begin));
        ASSERT_EQ(begin, at);
      }
      ASSERT_EQ(found, expected) << static_cast<int>(splits.back()) << " on " << text;
    }
  }
}

// Ids that tell every piece from any other, of all lengths; so many pieces that the cache is emptied several times.
TEST(PieceCache, GivesWhatIsComputed) {
  const auto compute = [](std::string_view piece, std::vector<int32_t>& ids) {
    for (size_t i = 0; i < piece.size(); i += 1 + piece.size() % 5) ids.push_back(piece[i] + 1000 * piece[i / 2]);
  };
  const uint32_t owners[] = {PieceCache::new_owner(), PieceCache::new_owner()};
  std::mt19937 random(17);
  for (int round = 0; round < 60; ++round) {
    std::string text;
    std::vector<size_t> ends;
    std::vector<int32_t> expected = {round}, found = {round};
    for (int i = 0; i < 700; ++i) {
      size_t size = random() % 4 == 0 ? 1 + random() % 100 : 1 + random() % 20;
      if (round % 4 == 3 && i % 100 == 0) size = (1 << 14) << (random() % 9);
      const size_t begin = text.size();
      text.resize(begin + size, static_cast<char>('a' + random() % 26));
      for (size_t k = 0; k < std::min<size_t>(size, 5); ++k) {
        text[begin + random() % size] = static_cast<char>(random() % 3);
      }
      ends.push_back(text.size());
      compute(std::string_view(text).substr(begin), expected);
      if (round % 2 == 1) expected.push_back(-1);  // the second tokenizer has one id more
    }
    const auto compute_once = [&](std::string_view piece, std::vector<int32_t>& ids) {
      compute(piece, ids);
      if (round % 2 == 1) ids.push_back(-1);
    };
    PieceCache::encode_all(owners[round % 2], text, 0, ends, found, compute_once);
    std::vector<int32_t> alone = {round};
    size_t begin = 0;
    for (const size_t end : ends) {
      const std::string piece = text.substr(begin, end - begin);
      PieceCache::encode(owners[round % 2], piece, alone, [&](auto& ids) { compute_once(piece, ids); });
      begin = end;
    }
    ASSERT_TRUE(found == expected && alone == expected) << "round " << round;
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

SentencePieceModel random_bpe(std::mt19937& random) {
  using Type = SentencePiece::Type;
  SentencePieceModel model{.kind = SentencePieceModel::Kind::kBpe, .byte_fallback = true};
  model.pieces = {{"<unk>", 0, Type::kUnknown}, {"b日", 0, Type::kUserDefined}};
  for (int byte = 0; byte < 256; ++byte) model.pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, Type::kByte});
  for (const char* piece : {"▁", "a", "b", "日", "本", "é", "▁▁"}) model.pieces.push_back({piece, -100});
  const std::vector<std::string> parts = {"a", "b", "日", "本", "語", "ab", "日本", "é"};
  for (int i = 0; i < 30; ++i) {
    std::string piece = random() % 3 == 0 ? "▁" : "";
    for (size_t k = 0; k < 2 + random() % 2; ++k) piece += parts[random() % parts.size()];
    const auto is_same = [&](const SentencePiece& other) { return other.text == piece; };
    if (std::any_of(model.pieces.begin(), model.pieces.end(), is_same)) continue;
    model.pieces.push_back({piece, -1.0F - static_cast<float>(random() % 20)});
  }
  return model;
}

TEST(SentencePieceEncoder, CutsChangeNoId) {
  std::mt19937 random(19);
  constexpr std::string_view kParts[] = {"a", "b", "ab", "日", "本", "日本", "語", "é", "x", " ", "  ", "b日", "中", "🦙"};
  for (int round = 0; round < 60; ++round) {
    const SentencePieceModel model = random_bpe(random);
    SentencePieceModel uncut = model;
    uncut.pieces.push_back({"q▁q", -1000});  // a word within a piece: texts are merged as a whole
    const SentencePieceEncoder fast(model, "fast"), slow(uncut, "slow");
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (size_t k = 0; k < 1 + random() % 60; ++k) text += kParts[random() % std::size(kParts)];
      std::vector<int32_t> ids, expected;
      fast.encode(text, ids);
      slow.encode(text, expected);
      ASSERT_EQ(ids, expected) << "round " << round << ": " << text;
    }
  }
}

TEST(SentencePieceNormalizer, SteadyStretchesEqualCharacters) {
  std::mt19937 random(23);
  constexpr std::string_view kParts[] = {"a", "b", "ab", "abc", "é", "日", "本", "🦙", " ", "  ", "▁", "b日", "\n", "日本"};
  ByteTrie symbols;
  for (const char* symbol : {"ab", "b日", "日本"}) symbols.insert(symbol, 0);
  for (int round = 0; round < 3000; ++round) {
    SentencePieceRules rules;
    rules.remove_extra_whitespaces = round % 2 == 0;
    rules.add_dummy_prefix = round % 3 == 0;
    std::string text, expected;
    for (size_t k = 0; k < 1 + random() % 12; ++k) text += kParts[random() % std::size(kParts)];
    const auto prefix = [&](size_t i) {
      const size_t symbol = symbols.longest_prefix(std::string_view(text).substr(i)).length;
      return std::string_view(text).substr(i, symbol > 0 ? symbol : utf8_length(text[i]));
    };
    size_t begin = 0;
    while (rules.remove_extra_whitespaces && begin < text.size() && text[begin] == ' ') ++begin;
    if (rules.add_dummy_prefix && begin < text.size()) expected = kWordMark;
    for (bool after_blank = rules.remove_extra_whitespaces; begin < text.size();) {
      const std::string_view part = prefix(begin);
      begin += part.size();
      if (part == " " && after_blank) continue;
      after_blank = rules.remove_extra_whitespaces && part == " ";
      expected += part == " " ? kWordMark : part;
    }
    while (rules.remove_extra_whitespaces && expected.ends_with(kWordMark)) {
      expected.resize(expected.size() - kWordMark.size());
    }
    const SentencePieceNormalizer normalizer(rules, false, &symbols, "test");
    ASSERT_EQ(normalizer.normalize(text), expected) << text;
  }
}

// A Thai letter has no short cut: with one, a stretch goes through the steps one after the other.
TEST(BertNormalizer, ShortCutsEqualTheSteps) {
  std::mt19937 random(29);
  constexpr std::string_view kParts[] = {"a", "B", " ", "\t", "\x01", "é", "É", "İ", "ß", "ы", "日", "漢", "Ω", "\u0085",
                                         "\u00AD", "\u0301", "א", "\u00A0", "ǅ", "龥", "ñ"};
  for (int options = 0; options < 16; ++options) {
    const Json json = {{"clean_text", options % 2 == 0},
                       {"handle_chinese_chars", options / 2 % 2 == 0},
                       {"strip_accents", options / 4 % 2 == 0},
                       {"lowercase", options / 8 == 0}};
    const auto normalizer = make_character_normalizer("BertNormalizer", json, "test");
    const auto apply = [&](const std::string& text) {
      NormalText normal{text, true};
      normalizer->apply(normal);
      return std::pair(normal.text, normal.starts_input);
    };
    for (int i = 0; i < 500; ++i) {
      std::string text, expected;
      bool starts_input = true;
      for (size_t k = 0; k < 1 + random() % 15; ++k) text += kParts[random() % std::size(kParts)];
      for (size_t at = 0, end = 0; at < text.size(); at = end) {
        while (end < text.size() && is_ascii(text.substr(end, 1)) == is_ascii(text.substr(at, 1))) ++end;
        const bool is_plain = is_ascii(text.substr(at, 1));
        auto [part, starts] = apply(text.substr(at, end - at) + (is_plain ? "" : "ก"));
        if (at == 0) starts_input = starts;
        expected += is_plain ? part : part.substr(0, part.size() - std::string("ก").size());
      }
      ASSERT_EQ(apply(text), std::pair(expected, starts_input)) << options << ": " << text;
    }
  }
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
