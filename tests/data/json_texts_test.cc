// The reader of simple lines against the general parser: where it answers, it answers the same.
#include "data/json_texts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/json.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

TEST(JsonTexts, ReadsTextsAmongOtherMembers) {
  JsonTexts texts({"text", "title"});
  const std::string line =
      "\t{ \"id\" : -12.5 , \"text\":\"a \\\"b\\\" \\u00e9\\ud83e\\udd99\\n\\/\",\"m\": {\"text\": [1, true, null, "
      "{}]},"
      "\"title\" :\"plain 日本\", \"z\":[] } \r";
  ASSERT_TRUE(texts.read(line));
  EXPECT_EQ(texts.text(0), "a \"b\" é🦙\n/");
  EXPECT_EQ(texts.text(1), "plain 日本");
  ASSERT_TRUE(texts.read(R"({"title": "x", "text": "\\", "text": "last"})"));
  EXPECT_EQ(texts.text(0), "last");
  ASSERT_TRUE(texts.read(R"({"text": "last", "title": "", "text": "\t"})"));
  EXPECT_EQ(texts.text(0), "\t");
}

TEST(JsonTexts, ReadsListsOfTexts) {
  JsonTexts texts({"text", "title"});
  const auto all = [&](size_t k) {
    std::vector<std::string> found;
    texts.for_each(k, [&](std::string_view text) { found.emplace_back(text); });
    return found;
  };
  using Texts = std::vector<std::string>;
  ASSERT_TRUE(texts.read(R"({"text": [ "a\n" ,"b", "\u00e9"], "n": -1.5e-7, "title": []})"));
  EXPECT_EQ(all(0), (Texts{"a\n", "b", "é"}));
  EXPECT_EQ(all(1), Texts{});
  EXPECT_FALSE(texts.holds_all());
  ASSERT_TRUE(texts.read(R"({"text": ["a"], "title": "x\n", "text": "\"last\""})"));
  EXPECT_EQ(all(0), Texts{"\"last\""});
  EXPECT_TRUE(texts.holds_all());
  ASSERT_TRUE(texts.read(R"({"text": "plain", "title": "x\n"})"));
  EXPECT_FALSE(texts.holds_all());
}

TEST(JsonTexts, LeavesEverythingElseToTheGeneralParser) {
  JsonTexts texts({"text"});
  for (const std::string line : {R"({"text": null})",
                                 R"({"text": ["a", 1]})",
                                 R"({"text": ["a",]})",
                                 R"({"text": ["a"})",
                                 R"({"a": 1})",
                                 R"([])",
                                 R"("text")",
                                 R"({"text": "a"} x)",
                                 "",
                                 R"({"text": "a",})",
                                 R"({"text": "a" "b"})",
                                 R"({"text": "a)",
                                 R"({"text": "\ud800"})",
                                 R"({"text": "\udc00"})",
                                 R"({"text": "\ud83e\u0041"})",
                                 R"({"text": "\x"})",
                                 R"({"text": "\u12g4"})",
                                 "{\"text\": \"a\tb\"}",
                                 R"({"text": "a", "n": 01})",
                                 R"({"text": "a", "n": 1.})",
                                 R"({"text": "a", "n": -})",
                                 R"({"text": "a", "n": 1e999})",
                                 R"({"text": "a", "n": 1e})",
                                 R"({"text": "a", "n": 1e+})",
                                 R"({"text": "a", "n": +1})",
                                 R"({"text": "a", "n": nul})",
                                 R"({"te\u0078t": "a"})",
                                 R"({text: "a"})",
                                 R"({"text": "a", "n": [1 2]})",
                                 R"({"text": "a", "n": {"b" 1}})",
                                 R"({"text": "a", "n": {1: 2}})",
                                 R"({"text": "a"}{)",
                                 "\xEF\xBB\xBF{\"text\": \"a\"}"}) {
    EXPECT_FALSE(texts.read(line)) << line;
  }
  EXPECT_FALSE(texts.read(R"({"text": "a", "n": )" + std::string(100, '[') + std::string(100, ']') + "}"));
  EXPECT_FALSE(texts.read(R"({"text": "a", "n": )" + std::string(400, '9') + "}"));
}

TEST(JsonTexts, AgreesWithTheGeneralParserOnDamagedLines) {
  const std::string good =
      R"({"n": [1, {"a": -2.5, "b": false}], "text": "one \u00e9\n \ud83e\udd99 日本 and a longer end", "s": "\\"})";
  std::mt19937 random(5);
  JsonTexts texts({"text"});
  int num_read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string line = good;
    for (int change = 0; change < 1 + round % 3; ++change) {
      const size_t at = random() % line.size();
      constexpr std::string_view kOdd = "\"\\{}[]:,0.-u8aen \t\x01\x7f";
      switch (random() % 4) {
        case 0:
          line.erase(at, 1 + random() % 3);
          break;
        case 1:
          line.insert(at, line.substr(random() % line.size(), random() % 8));
          break;
        default:
          line[at] = kOdd[random() % kOdd.size()];
      }
    }
    if (!is_valid_utf8(line) || !texts.read(line)) continue;
    ++num_read;
    const Json json = parse_json(line, "line");
    EXPECT_EQ(json.at("text").get<std::string>(), texts.text(0)) << line;
  }
  EXPECT_GT(num_read, 1000);
}

}  // namespace
}  // namespace megalith
