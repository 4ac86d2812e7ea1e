// Files with random damage: every one is opened and used, or refused with a UserError. Seeded, so that a failure comes
// back; bounded, so that it takes seconds. Run it with MEGALITH_SANITIZE to see what reads out of bounds.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>

#include "core/error.h"
#include "core/file.h"
#include "support/temporary_folder.h"
#include "tokenizer/small_files.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kText = "The quick Größe 日本 🦙 don't 123 <s>[MASK] \xFF\n\n  x▁▁a";

// A tokenizer.json with most components, small enough that damage often hits something that counts.
const std::string kManyParts = R"json({"added_tokens":[{"id":0,"content":"<s>","special":true},
  {"id":9,"content":"[MASK]","lstrip":true,"normalized":true}],
 "normalizer":{"type":"Sequence","normalizers":[{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,
  "strip_accents":null,"lowercase":true},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace",
  "pattern":{"Regex":"x+"},"content":"y"},{"type":"Prepend","prepend":"_"},{"type":"NFKC"},{"type":"Nmt"},
  {"type":"Precompiled","precompiled_charsmap":"DAAAAAABAAABAAAAAgAAAGEAYgA="}]},
 "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|\\p{L}+(?=\\d)"},
  "behavior":"MergedWithNext","invert":false},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first",
  "split":true},{"type":"Digits","individual_digits":true},{"type":"Punctuation","behavior":"Contiguous"}]},
 "model":{"type":"BPE","unk_token":"<s>","fuse_unk":true,"byte_fallback":true,"vocab":{"<s>":0,"a":1,"b":2,"ab":3,"▁":4,
  "▁a":5,"<0xE2>":6},"merges":[["a","b"],["▁","a"]]},
 "post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[
  {"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>",
  "ids":[0],"tokens":["<s>"]}}}]},
 "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
  {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}})json";

const std::string kUnigram =
    R"({"model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["<unk>",0],["a",-1],
  ["▁a",-2.5],["日",-3]]},"pre_tokenizer":{"type":"WhitespaceSplit"},"decoder":{"type":"Metaspace","replacement":"▁"}})";
const std::string kWordPiece = R"({"model":{"type":"WordPiece","unk_token":"[UNK]","max_input_chars_per_word":100,
  "vocab":{"[UNK]":0,"the":1,"##ick":2,"[SEP]":3}},"pre_tokenizer":{"type":"BertPreTokenizer"},"decoder":{"type":"WordPiece"},
  "post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[UNK]",0]}})";

std::string damaged(const std::string& good, std::mt19937& random) {
  std::string bad = good;
  for (size_t change = 0; change < 1 + random() % 3; ++change) {
    if (bad.empty()) break;
    const size_t at = random() % bad.size(), length = std::min<size_t>(1 + random() % 12, bad.size() - at);
    switch (random() % 7) {
      case 0:
        bad.resize(at);
        break;
      case 1:
        bad[at] = static_cast<char>(random());
        break;
      case 2:
        bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
        break;
      case 3:
        bad.erase(at, length);
        break;
      case 4:
        bad.insert(at, bad.substr(random() % bad.size(), length));
        break;
      case 5: {
        constexpr std::string_view kOdd[] = {
            "-1",   "99999999999999999999", "null",   "[]", "{}", "\"\"", "1e308", "[[[[", "\xFF", "67108863",
            "true", "(?:(a+)+)+$",          "\\u0000"};
        bad.replace(at, length, kOdd[random() % std::size(kOdd)]);
        break;
      }
      default:
        bad.replace(at, length, std::string(length, static_cast<char>(random())));
    }
  }
  return bad;
}

struct Subject {
  std::string name, content;
  std::function<std::unique_ptr<Tokenizer>(const fs::path&)> open;
};

std::function<std::unique_ptr<Tokenizer>(const fs::path&)> as(const std::string& type) {
  return [type](const fs::path& file) {
    return make_tokenizer({.tokenizer_type = type, .tokenizer_model = file.string(), .tiktoken_num_special_tokens = 4});
  };
}

TEST(HostileFiles, AreUsedOrRefused) {
  std::string charsmap;  // the trie holds "a"; its replacement is "b"
  for (const uint32_t unit : {0x12u, 0x500u, 0x61u, 0x80000000u})
    charsmap.append(reinterpret_cast<const char*>(&unit), 4);
  const std::string vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}";
  const Subject subjects[] = {
      {"tokenizer.json", kManyParts, as("HuggingFaceTokenizer")},
      {"unigram.json", kUnigram, as("HuggingFaceTokenizer")},
      {"word_piece.json", kWordPiece, as("HuggingFaceTokenizer")},
      {"llama3.model", test::tiktoken_lines(), as("Llama3Tokenizer")},
      {"unigram.model",
       test::sentencepiece_model(1, {{"▁", -1, 1}, {"▁a", -2, 1}, {"a", -3, 1}, {"x", -1, 4}},
                                 std::string("\x0C\0\0\0", 4) + charsmap.substr(0, 12) + "b"),
       as("SentencePieceTokenizer")},
      {"bpe.model", test::sentencepiece_model(2, {{"▁", -1, 1}, {"▁a", -2, 1}, {"a", -3, 5}, {"▁ab", -1, 5}}),
       as("Llama2Tokenizer")},
      {"vocab.json", vocab,
       [](const fs::path& file) {
         const fs::path merges = file.parent_path() / "merges.txt";
         write_file_atomic(merges, "#version: 0.2\na b\n");
         return make_tokenizer(
             {.tokenizer_type = "GPT2BPETokenizer", .vocab_file = file.string(), .merge_file = merges.string()});
       }},
      {"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##ick\nquick\n",
       [](const fs::path& file) {
         return make_tokenizer({.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = file.string()});
       }},
  };
  const test::TemporaryFolder folder;
  for (const Subject& subject : subjects) {
    const fs::path good = folder.write(subject.name, subject.content);
    EXPECT_GT(subject.open(good)->vocab_size(), 0) << subject.name;
    std::mt19937 random(1);
    int num_used = 0, num_refused = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < 1500; ++round) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) break;
      const fs::path file = folder.write("bad/" + subject.name, damaged(subject.content, random));
      try {
        const auto tokenizer = subject.open(file);
        const std::vector<int32_t> ids = tokenizer->encode(kText, true);
        for (const int32_t id : ids) ASSERT_LT(id, int64_t{1} << 27) << subject.name << " round " << round;
        tokenizer->decode(ids);
        tokenizer->decode(std::vector<int32_t>{-1, INT32_MAX, 0, 1, 2});
        ++num_used;
      } catch (const UserError& error) {
        EXPECT_FALSE(error.message().empty());
        ++num_refused;
      }
    }
    EXPECT_GT(num_refused, 0) << subject.name << " (" << num_used << " could be used)";
  }
}

TEST(HostileFiles, IdsAroundATextAreOfTheVocabulary) {
  const test::TemporaryFolder folder;
  std::string outside = kWordPiece;
  outside.replace(outside.find("[\"[SEP]\",3]"), 11, "[\"[SEP]\",4]");
  const auto file = folder.write("outside.json", outside);
  try {
    make_tokenizer({.tokenizer_model = file.string()});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), file.string() + ": post_processor puts the id 4 around a text, but the ids end at 3");
  }
}

TEST(HostileFiles, DeepNestingEndsInAnError) {
  const test::TemporaryFolder folder;
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 200; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  const auto file =
      folder.write("deep.json", R"({"model":{"type":"WordLevel","vocab":{"<unk>":0}},"normalizer":)" + deep + "}");
  EXPECT_EQ(make_tokenizer({.tokenizer_model = file.string()})->encode("x"), std::vector<int32_t>{0});
  for (int i = 0; i < 200; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  const auto deeper =
      folder.write("deeper.json", R"({"model":{"type":"WordLevel","vocab":{"<unk>":0}},"normalizer":)" + deep + "}");
  EXPECT_THROW(make_tokenizer({.tokenizer_model = deeper.string()}), UserError);
}

}  // namespace
}  // namespace megalith
