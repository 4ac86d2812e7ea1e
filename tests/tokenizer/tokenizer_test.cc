// The tokenizers without files, the choice among them, UTF-8 repair and regular expressions.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "support/temporary_folder.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

std::string message_of(const TokenizerOptions& options) {
  try {
    make_tokenizer(options);
  } catch (const UserError& error) {
    return error.message();
  }
  return "no error";
}

TEST(ByteTokenizer, IdsAreTheBytes) {
  const auto tokenizer = make_tokenizer({});
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->encode("aé"), (std::vector<int32_t>{97, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->encode("\xff"), (std::vector<int32_t>{0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer->encode("", true), std::vector<int32_t>{});
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{97, 256, 0xC3, 0xA9, 0xC3, 300, -1}), "a<|endoftext|>é\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{97, 256, 98}, true), "ab");
}

TEST(NullTokenizer, HasOneIdMoreThanItsVocabulary) {
  const auto tokenizer = make_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 100});
  EXPECT_EQ(tokenizer->vocab_size(), 101);
  EXPECT_EQ(tokenizer->eod(), 100);
  EXPECT_EQ(tokenizer->encode(" 1 22\n100 "), (std::vector<int32_t>{1, 22, 100}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 22}), "1 22");
  for (const char* text : {"1 x", "101", "-1", "1.5", "99999999999"}) EXPECT_THROW(tokenizer->encode(text), UserError);
}

TEST(ByteTokenizer, RunsCutNoCharacterAndRepairAsTheWhole) {
  const auto tokenizer = make_byte_tokenizer();
  for (const std::string unit : {"漢", "é🦙", "\x80", "\xE6\xBC", "\xF0\x9F\xA6x"}) {
    std::string text = "x";
    while (text.size() < 300'000) text += unit;
    std::vector<int32_t> together;
    tokenizer->encode_in_runs(
        text, false, [&](std::span<const int32_t> run) { together.insert(together.end(), run.begin(), run.end()); });
    EXPECT_TRUE(together == tokenizer->encode(text)) << unit;
  }
}

TEST(TokenizerDigest, TellsWhatTokenizersDo) {
  const auto digest = [](const auto& tokenizer, int64_t num_ids) { return tokenizer_digest(*tokenizer, num_ids); };
  EXPECT_EQ(digest(make_byte_tokenizer(), 257), digest(make_byte_tokenizer(), 257));
  EXPECT_NE(digest(make_byte_tokenizer(), 257), digest(make_null_tokenizer(256), 257));
  EXPECT_NE(digest(make_null_tokenizer(255), 256), digest(make_null_tokenizer(256), 257));
  // More ids after the same ones, as the sentinels of a T5 are.
  EXPECT_EQ(digest(make_null_tokenizer(400), 256), digest(make_null_tokenizer(500), 256));
}

TEST(MakeTokenizer, RefusesWhatCannotWork) {
  EXPECT_EQ(message_of({.tokenizer_type = "NullTokenizer"}), "tokenizer_type NullTokenizer needs vocab_size");
  EXPECT_EQ(message_of({.tokenizer_type = "Llama3Tokenizer"}), "tokenizer_type Llama3Tokenizer needs tokenizer_model");
  EXPECT_EQ(message_of({.tokenizer_type = "HuggingFaceTokeniser"}),
            "tokenizer_type HuggingFaceTokeniser is not supported. Did you mean HuggingFaceTokenizer?");
  EXPECT_EQ(message_of({.tokenizer_model = "/no/such"}), "tokenizer_model /no/such: /no/such does not exist");
}

TEST(StreamingDecoder, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = make_byte_tokenizer();
  StreamingDecoder decoder(*tokenizer, /*skip_special=*/true);
  std::vector<std::string> parts;
  for (const int32_t id : {97, 0xF0, 0x9F, 256, 0xA6, 0x99, 0xC3, 98, 0xE2}) parts.push_back(decoder.push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "", "", "", "🦙", "",
                                             "\xEF\xBF\xBD"
                                             "b",
                                             ""}));
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamingDecoder, ShowsIdsWithoutAToken) {
  const auto tokenizer = make_byte_tokenizer();
  StreamingDecoder decoder(*tokenizer, /*skip_special=*/true);
  std::string text;
  for (const int32_t id : {97, 300, 256, 0xC3, 257, 98, -1}) text += decoder.push(id);
  EXPECT_EQ(text + decoder.finish(), "a<|id:300|>\xEF\xBF\xBD<|id:257|>b<|id:-1|>");

  const test::TemporaryFolder folder;
  const auto holes =
      folder.write("tokenizer.json", R"({"model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0,"b":3}}})");
  const auto words = make_tokenizer({.tokenizer_model = holes.string()});
  StreamingDecoder shown(*words);
  text.clear();
  for (const int32_t id : {0, 1, 3, 4}) text += shown.push(id);
  EXPECT_EQ(text + shown.finish(), "a<|id:1|> b<|id:4|>");
}

// Results of Python 3's bytes.decode(errors="replace"); R is U+FFFD.
TEST(Utf8, ReplacesWhatPythonReplaces) {
  const auto replaced = [](std::string_view bytes) {
    std::string text = replace_invalid_utf8(bytes);
    for (size_t at; (at = text.find("\xEF\xBF\xBD")) != std::string::npos;) text.replace(at, 3, "R");
    return text;
  };
  EXPECT_EQ(replaced("ok \xff end"), "ok R end");
  EXPECT_EQ(replaced("\xe2\x82"), "R");
  EXPECT_EQ(replaced("\xe2\x82x"), "Rx");
  EXPECT_EQ(replaced("\xed\xa0\x80"), "RRR");
  EXPECT_EQ(replaced("\xf0\x9f\x92"), "R");
  EXPECT_EQ(replaced("\xf0\x9fx\x92"), "RxR");
  EXPECT_EQ(replaced("\xc0\xaf\xf5\x80"), "RRRR");
  EXPECT_EQ(replaced("\xf4\x90\x80\x80"), "RRRR");
  EXPECT_EQ(replaced("\xe0\x80\x80"), "RRR");
  EXPECT_EQ(replaced("a\x80\x80"
                     "b"),
            "aRRb");
  EXPECT_FALSE(is_valid_utf8("\xed\xa0\x80"));
  EXPECT_TRUE(is_valid_utf8("é日\U0010FFFF"));
}

TEST(Utf8, IsValidWhereEveryStepIs) {
  constexpr uint8_t kBytes[] = {0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2,
                                0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF4, 0xF5};
  std::mt19937 random(4);
  int num_valid = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (size_t k = 0; k < 1 + random() % 12; ++k) {
      constexpr std::string_view kWhole[] = {"é", "日", "x", "🦙"};
      const size_t which = random() % 8;
      text += which < 7 ? std::string(kWhole[which % 4]) : std::string(1, static_cast<char>(kBytes[random() % 17]));
    }
    bool is_valid = true;
    for (size_t at = 0; is_valid && at < text.size();) {
      const Utf8Step step = decode_utf8(std::string_view(text).substr(at));
      is_valid = step.is_valid;
      at += static_cast<size_t>(step.length);
    }
    ASSERT_EQ(is_valid_utf8(text), is_valid) << i;
    num_valid += is_valid ? 1 : 0;
  }
  EXPECT_GT(num_valid, 50'000);
  EXPECT_LT(num_valid, 150'000);
}

TEST(Utf8, EncodesAndDecodesEveryLength) {
  for (const uint32_t code_point : {0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(code_point, text);
    const Utf8Step step = decode_utf8(text);
    EXPECT_TRUE(step.is_valid);
    EXPECT_EQ(step.code_point, code_point);
    EXPECT_EQ(static_cast<size_t>(step.length), text.size());
  }
}

TEST(Utf8, TailThatMayBecomeACharacter) {
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail("é"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xF0\x9F\xA6"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("a\xFF"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\x80\x80\x80\x80"), 0u);
}

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern, "test");
  Regex::Scanner scanner(regex, text);
  std::vector<std::string> found;
  for (size_t begin, end; scanner.next(begin, end);) found.emplace_back(text.substr(begin, end - begin));
  return found;
}

TEST(Regex, WhitespaceIsUnicodesWithoutTheMongolianSeparator) {
  EXPECT_EQ(matches(R"(\s+)", "a\u0085\u3000b\u180ec"), (std::vector<std::string>{"\u0085\u3000"}));
  EXPECT_EQ(matches(R"([^\s]+)", "a \u180eb"), (std::vector<std::string>{"a", "\u180eb"}));
  EXPECT_EQ(matches(R"(\S+)", "a \u180eb"), (std::vector<std::string>{"a", "\u180eb"}));
}

TEST(Regex, DollarStandsAtLineEndsAsInOniguruma) {
  EXPECT_EQ(matches(R"(\w+$)", "ab\ncd"), (std::vector<std::string>{"ab", "cd"}));
}

TEST(Regex, EmptyMatchesEnd) { EXPECT_EQ(matches("x*", "aé").size(), 3u); }

TEST(Regex, EscapedTextMatchesItself) {
  const std::string text = R"(a.b*c[d]{e}|\^$()+?-#)";
  EXPECT_EQ(matches(escape_regex(text), "x" + text + "y"), std::vector<std::string>{text});
}

}  // namespace
}  // namespace megalith
