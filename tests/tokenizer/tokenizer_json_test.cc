// tokenizer.json against ids that Hugging Face's `tokenizers` gave (make_goldens.py), and what hostile files meet.
#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

const fs::path kData = test::source_dir() / "tests/tokenizer/data";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::vector<int32_t> ids_of(const Json& list) { return list.get<std::vector<int32_t>>(); }

TEST(TokenizerJson, IdsAndTextEqualHuggingFaces) {
  const Json goldens = load_json(kData / "goldens.json");
  ASSERT_EQ(goldens.size(), 4u);
  for (const Json& golden : goldens) {
    const auto name = golden["name"].get<std::string>();
    const auto tokenizer = load_tokenizer_json(kData / name);
    EXPECT_EQ(tokenizer->vocab_size(), golden["vocab_size"].get<int64_t>()) << name;
    EXPECT_EQ(tokenizer->bos(), golden["bos"].get<int32_t>()) << name;
    EXPECT_EQ(tokenizer->eod(), golden["eos"].get<int32_t>()) << name;
    for (const Json& item : golden["cases"]) {
      const std::string text = from_hex(item["hex"].get<std::string>());
      const std::vector<int32_t> ids = tokenizer->encode(text);
      EXPECT_EQ(ids, ids_of(item["ids"])) << name << ": " << text;
      EXPECT_EQ(tokenizer->encode(text, true), ids_of(item["special_ids"])) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids), item["decoded"].get<std::string>()) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids, true), item["decoded_skip"].get<std::string>()) << name << ": " << text;
    }
  }
}

TEST(TokenizerJson, ByteLevelRoundTripsAnyValidText) {
  const auto tokenizer = load_tokenizer_json(kData / "llama3" / "tokenizer.json");
  for (const std::string text : {"", "a b", "日本語 \n\n🦙", "tab\t\x01 end "}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(TokenizerJson, StreamingDecoderNeverSplitsACharacter) {
  const auto tokenizer = load_tokenizer_json(kData / "llama3");
  const std::string text = "é日本ΩЖ🦙 \u2603x";
  const std::vector<int32_t> ids = tokenizer->encode(text);
  ASSERT_GT(ids.size(), 6u);
  StreamingDecoder decoder(*tokenizer);
  std::string whole;
  for (const int32_t id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos);
    whole += part;
  }
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(whole, text);
}

TEST(TokenizerJson, LongPiecesAgreeWithShortOnesAndStayFast) {
  // One piece of 300000 bytes without a blank: quadratic merging would take minutes.
  const auto tokenizer = load_tokenizer_json(kData / "llama3");
  std::string text;
  for (int i = 0; i < 100'000; ++i)
    text += static_cast<char>('a' + i % 26), text += static_cast<char>('a' + i * 7 % 26), text += 'q';
  const std::vector<int32_t> ids = tokenizer->encode(text);
  EXPECT_GT(ids.size(), 1000u);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

// A long text is normalised and encoded in parts, and its ids are those of its words.
TEST(TokenizerJson, LongTextsInRunsGiveTheIdsOfTheirWords) {
  const std::string bpe = R"("model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true,
    "vocab": {"<unk>": 0, "\u2581": 1, "a": 2, "b": 3, "\u2581a": 4, "ab": 5, "é": 6, "가": 7, "漢": 8, "e": 9, "\u2581ab": 10},
    "merges": ["▁ a", "a b", "▁a b"]}, "added_tokens": [])";
  const std::string normalizers[] = {
      R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
         {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "NFC"}]}, "pre_tokenizer": null, )",
      R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Nmt"}, {"type": "Lowercase"}]},
         "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, )"};
  const std::string words[] = {"ab", "e\u0301a", "\u1100\u1161b", "漢漢e\u0301漢", "a\u0323\u0301", "b"};
  for (const std::string& normalizer : normalizers) {
    const auto tokenizer = make_json_tokenizer(parse_json("{" + normalizer + bpe + "}", "here"), "here",
                                               [](const auto&) { return SpecialIds(); });
    std::string text;
    std::vector<int32_t> expected;
    for (size_t i = 0; text.size() < 3'000'000; ++i) {
      const std::string& word = words[(i * i + i / 7) % std::size(words)];
      text += (i == 0 ? "" : " ") + word;
      const std::vector<int32_t> ids = tokenizer->encode(word);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    std::vector<int32_t> together;
    int num_runs = 0;
    tokenizer->encode_in_runs(text, false, [&](std::span<const int32_t> run) {
      together.insert(together.end(), run.begin(), run.end());
      ++num_runs;
    });
    EXPECT_TRUE(together == expected);
    EXPECT_GT(num_runs, 2);
    EXPECT_TRUE(tokenizer->encode(text) == expected);
  }
}

TEST(TokenizerJson, ThreadsShareOneTokenizer) {
  const auto tokenizer = load_tokenizer_json(kData / "qwen2");
  const std::string text = "The quick brown fox jumps over 13 lazy dogs. Größe 日本語";
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) result = tokenizer->encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

class BadTokenizerJson : public testing::Test {
 protected:
  BadTokenizerJson() {
    std::string pattern = (fs::temp_directory_path() / "megalith_tokenizer_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    good_ = load_json(kData / "llama3" / "tokenizer.json");
  }
  ~BadTokenizerJson() override { remove_tree(folder_); }

  // The message after the file's name.
  std::string message_of(const Json& json) { return message_of_text(json.dump()); }
  std::string message_of_text(const std::string& text) {
    const fs::path file = folder_ / "tokenizer.json";
    write_file_atomic(file, text);
    try {
      load_tokenizer_json(folder_);
    } catch (const UserError& error) {
      EXPECT_TRUE(error.message().starts_with(file.string())) << error.message();
      return error.message().substr(file.string().size());
    }
    return "no error";
  }

  fs::path folder_;
  Json good_;
};

TEST_F(BadTokenizerJson, UnknownComponentsAreNamed) {
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good_;
    json[Json::json_pointer(pointer)] = value;
    return message_of(json);
  };
  const Json odd = {{"type", "Odd"}};
  EXPECT_EQ(with("/model/type", "Odd"), ": model \"Odd\" is not supported");
  EXPECT_EQ(with("/normalizer", odd), ": normalizer \"Odd\" is not supported");
  EXPECT_EQ(with("/pre_tokenizer", odd), ": pre_tokenizer \"Odd\" is not supported");
  EXPECT_EQ(with("/pre_tokenizer/pretokenizers/0", odd), ": pre_tokenizer \"Odd\" is not supported");
  EXPECT_EQ(with("/post_processor", odd), ": post_processor \"Odd\" is not supported");
  EXPECT_EQ(with("/decoder", odd), ": decoder \"Odd\" is not supported");
}

TEST_F(BadTokenizerJson, HostileValuesAreReported) {
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good_;
    json[Json::json_pointer(pointer)] = value;
    return message_of(json);
  };
  EXPECT_EQ(with("/model/vocab/a", -1), ": vocab[\"a\"] has the id -1");
  EXPECT_EQ(with("/model/vocab/a", 1e15), ": vocab[\"a\"] has the id 1000000000000000");
  EXPECT_EQ(with("/model/vocab/a", "x"), ": vocab[\"a\"] is \"x\", expected a whole number");
  EXPECT_EQ(with("/model/vocab/a", good_["model"]["vocab"]["b"]),
            fmt::format(": two tokens have the id {}", good_["model"]["vocab"]["b"].get<int>()));
  EXPECT_EQ(with("/model/vocab", Json::array()), ": \"vocab\" is not an object");
  EXPECT_EQ(with("/model/merges/0", "ab"), ": merges[0] is \"ab\", expected two tokens and a blank");
  EXPECT_EQ(with("/model/merges/0", Json::array({"a", "b", "c"})), ": merges[0] is not a pair of tokens");
  EXPECT_EQ(with("/model/merges/0", Json::array({"q", "☃"})),
            ": merges[0] (\"q\" and \"☃\") uses or makes a token that is not in \"vocab\"");
  EXPECT_EQ(with("/added_tokens/0/id", -5), ": the added token \"<|bos|>\" has the id -5");
  EXPECT_TRUE(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a")
                  .starts_with(": the regular expression \"(a\" is not valid at character 2: "));
  EXPECT_EQ(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&[b]]"),
            ": the regular expression \"[a&&[b]]\" nests or intersects character classes, which is not supported");
  EXPECT_EQ(with("/model", 3), " is 3, expected an object with \"type\"");
  EXPECT_TRUE(message_of_text(good_.dump().substr(0, 1000)).starts_with(":1: not valid JSON at byte "));
}

TEST(PreTokenizers, UnicodeScriptsCutsWhereTheScriptChanges) {
  const test::TemporaryFolder folder;
  const auto file =
      folder.write("tokenizer.json", R"({"model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"ab ":1,
    "どこ で生れ":2,"。":3,"Да ":4,"9!":5}},"pre_tokenizer":{"type":"UnicodeScripts"}})");
  const auto tokenizer = make_tokenizer({.tokenizer_model = file.string()});
  // Blanks stay with what they follow, and those in front are dropped, as in the library.
  EXPECT_EQ(tokenizer->encode("  ab どこ で生れ。Да 9!"), (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(tokenizer->encode("   ").empty());
  EXPECT_EQ(tokenizer->encode("ーab "), (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace megalith
