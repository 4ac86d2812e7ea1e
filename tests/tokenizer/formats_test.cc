// Files of tiktoken, tekken, SentencePiece, GPT-2 and BERT: small ones, with ids worked out by hand. Real ones are
// compared with their libraries in tests/oracle/tokenizer_test.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "support/temporary_folder.h"
#include "tokenizer/small_files.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {
using test::SmallPiece;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> open(const std::string& type, const std::filesystem::path& path) {
  return make_tokenizer({.tokenizer_type = type, .tokenizer_model = path.string()});
}

std::string error_of(const TokenizerOptions& options) {
  try {
    make_tokenizer(options);
  } catch (const UserError& error) {
    return error.message();
  }
  return "no error";
}

TEST(Tiktoken, MergesByRankAndKnowsLlama3sSpecialTokens) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("tokenizer.model", test::tiktoken_lines());
  const auto tokenizer = open("Llama3Tokenizer", folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), 260 + 256);
  EXPECT_EQ(tokenizer->encode("abcab abé"), (Ids{257, 256, ' ', 256, 259}));
  EXPECT_EQ(tokenizer->encode("<|begin_of_text|>ab<|eot_id|>"), (Ids{260, 256, 269}));
  EXPECT_EQ(tokenizer->encode("ab", true), (Ids{260, 256}));
  EXPECT_EQ(tokenizer->bos(), 260);
  EXPECT_EQ(tokenizer->eod(), 261);
  EXPECT_EQ(tokenizer->pad(), 264);
  EXPECT_EQ(tokenizer->decode(Ids{260, 257, 515}), "<|begin_of_text|>abc<|reserved_special_token_245|>");
  EXPECT_EQ(tokenizer->decode(Ids{260, 257, 0xC3}, true), "abc\xEF\xBF\xBD");
  EXPECT_EQ(open("HuggingFaceTokenizer", file)->encode("abc"), Ids{257});
}

TEST(Tiktoken, MegatronsListHasSpecialTokensInFront) {
  const test::TemporaryFolder folder;
  Json list = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    list.push_back({{"rank", byte},
                    {"token_bytes", test::base64(std::string(1, static_cast<char>(byte)))},
                    {"token_str", nullptr}});
  }
  list.push_back({{"rank", 256}, {"token_bytes", test::base64("ab")}, {"token_str", "ab"}});
  TokenizerOptions options{.tokenizer_type = "TikTokenizer",
                           .tokenizer_model = folder.write("vocab.json", list.dump()).string(),
                           .tiktoken_num_special_tokens = 10};
  const auto tokenizer = make_tokenizer(options);
  EXPECT_EQ(tokenizer->vocab_size(), 267);
  EXPECT_EQ(tokenizer->encode("abb</s>"), (Ids{266, 'b' + 10, '<' + 10, '/' + 10, 's' + 10, '>' + 10}));
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_EQ(tokenizer->decode(Ids{1, 266, 5}), "<s>ab<SPECIAL_5>");
  options.vocab_size = 266;
  EXPECT_EQ(make_tokenizer(options)->encode("ab"), (Ids{'a' + 10, 'b' + 10}));
  options.tiktoken_special_tokens = {"<unk>", "<s>"};
  EXPECT_EQ(error_of(options), "tiktoken_special_tokens leaves out </s>");

  const Json tekken = {
      {"config", {{"pattern", R"([^ ]+|\s+)"}, {"default_vocab_size", 1000}, {"default_num_special_tokens", 4}}},
      {"vocab", list},
      {"special_tokens", {{{"rank", 0}, {"token_str", "<unk>"}}, {{"rank", 1}, {"token_str", "<s>"}}}}};
  const auto mistral = open("HuggingFaceTokenizer", folder.write("tekken.json", tekken.dump()));
  EXPECT_EQ(mistral->encode("ab a", true), (Ids{1, 260, ' ' + 4, 'a' + 4}));
}

TEST(Tiktoken, DamagedLinesAreNamed) {
  const test::TemporaryFolder folder;
  const auto message = [&](const std::string& content) {
    const auto file = folder.write("x.model", content);
    return error_of({.tokenizer_type = "Llama3Tokenizer", .tokenizer_model = file.string()})
        .substr(file.string().size());
  };
  const std::string good = test::tiktoken_lines();
  EXPECT_EQ(message(good + "YWI= 260\n"), ":261: this token was there before");
  EXPECT_EQ(message(good + "YWJj 999\n"), ":261: rank 999 where 260 comes next");
  EXPECT_EQ(message(good + "YWJj\n"), ":261: not a token in base64 and its rank");
  EXPECT_EQ(message(good + "Y*Jj 260\n"), ":261 is not base64 at character 1");
  EXPECT_EQ(message(good.substr(0, 9 * 7)), ": no token is the single byte 9");
}

TEST(SentencePiece, UnigramChoosesTheLikeliestCut) {
  const test::TemporaryFolder folder;
  const auto file = folder.write(
      "m.model", test::sentencepiece_model(
                     1, {{"▁", -3, 1}, {"▁a", -2, 1}, {"b", -2, 1}, {"ab", -1, 1}, {"a", -4, 1}, {"<sep>", 0, 4}}));
  const auto tokenizer = open("GPTSentencePieceTokenizer", file);
  // ▁+ab (-4) and ▁a+b (-4): the first that was found stays.
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{3, 6}));
  EXPECT_EQ(tokenizer->encode("  a<sep>b  "), (Ids{4, 8, 5}));
  EXPECT_EQ(tokenizer->encode("axyb"), (Ids{4, 0, 5}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 4, 5, 3, 0, 2}), "ab  \u2047 ");
  EXPECT_EQ(open("Llama2Tokenizer", file)->encode("a", true), (Ids{1, 4}));
  EXPECT_EQ(tokenizer->eod(), 2);
}

TEST(SentencePiece, BytePairsMergeByScoreAndBytesStandIn) {
  const test::TemporaryFolder folder;
  std::vector<SmallPiece> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, 6});
  for (const auto& [text, score] : std::vector<std::pair<std::string, float>>{
           {"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"bc", -1}, {"▁a", -2}, {"ab", -3}, {"▁▁", -4}}) {
    pieces.push_back({text, score, 1});
  }
  const auto file = folder.write("m.model", test::sentencepiece_model(2, pieces, "", true));
  const auto tokenizer = open("GPTSentencePieceTokenizer", file);
  const int32_t first = 3 + 256;
  EXPECT_EQ(tokenizer->encode("abc ab"), (Ids{first + 5, first + 4, first + 5, first + 2}));
  EXPECT_EQ(tokenizer->encode("aé"), (Ids{first + 5, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->decode(Ids{first + 5, 3 + 0xC3, 3 + 0xA9, 3 + 0xC3}), "aé\xEF\xBF\xBD");

  StreamingDecoder decoder(*tokenizer);
  std::vector<std::string> parts;
  for (const int32_t id : tokenizer->encode("a é bc")) parts.push_back(decoder.push(id));
  parts.push_back(decoder.finish());
  EXPECT_EQ(parts, (std::vector<std::string>{"a", " ", "", "é", " ", "bc", ""}));
}

TEST(SentencePiece, MegatronAddsItsTokens) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("m.model", test::sentencepiece_model(1, {{"▁", -3, 1}, {"▁a", -1, 1}, {"b", -2, 1}}));
  const auto tokenizer = make_tokenizer(
      {.tokenizer_type = "SentencePieceTokenizer", .tokenizer_model = file.string(), .vocab_extra_ids = 2});
  // <CLS> 6, <SEP> 7, <EOD> 8, <MASK> 9, <PAD> 10; <s> and </s> are there; two sentinels
  EXPECT_EQ(tokenizer->vocab_size(), 13);
  EXPECT_EQ(tokenizer->eod(), 8);
  EXPECT_EQ(tokenizer->special_ids().extra, (Ids{11, 12}));
  EXPECT_EQ(tokenizer->encode("a<extra_id_1>b</s>"), (Ids{4, 12, 3, 5, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{4, 12, 4}), "a <extra_id_1> a");
}

TEST(VocabFiles, Gpt2AndBert) {
  const test::TemporaryFolder folder;
  const auto vocab = folder.write("vocab.json", R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5})");
  const auto merges = folder.write("merges.txt", "#version: 0.2\na b\nĠ ab\n");
  const auto gpt2 = make_tokenizer(
      {.tokenizer_type = "GPT2BPETokenizer", .vocab_file = vocab.string(), .merge_file = merges.string()});
  EXPECT_EQ(gpt2->encode("ab abb"), (Ids{3, 4, 1}));
  EXPECT_EQ(gpt2->eod(), 5);
  EXPECT_EQ(gpt2->decode(Ids{3, 4, 5}), "ab ab<|endoftext|>");
  EXPECT_EQ(open("GPT2BPETokenizer", folder.path())->encode("ab"), Ids{3});
  EXPECT_EQ(error_of({.tokenizer_type = "GPT2BPETokenizer", .vocab_file = vocab.string()}),
            "tokenizer_type GPT2BPETokenizer needs merge_file");

  const auto words = folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n!\nUp\n");
  TokenizerOptions options{
      .tokenizer_type = "BertWordPieceLowerCase", .vocab_file = words.string(), .vocab_extra_ids = 2};
  const auto bert = make_tokenizer(options);
  EXPECT_EQ(bert->encode("Playing! plays", true), (Ids{2, 5, 6, 7, 1, 3}));
  EXPECT_EQ(bert->decode(Ids{5, 6, 7}), "playing!");
  EXPECT_EQ(bert->vocab_size(), 13);
  EXPECT_EQ(bert->special_ids().extra, (Ids{11, 12}));
  EXPECT_EQ(bert->special_ids().mask, 4);
  options.tokenizer_type = "BertWordPieceCase";
  EXPECT_EQ(make_tokenizer(options)->encode("Up Play"), (Ids{8, 1}));
  options.vocab_file = folder.write("twice.txt", "[PAD]\nx\nx\n").string();
  EXPECT_EQ(error_of(options), *options.vocab_file + ":3: \"x\" again");
  EXPECT_EQ(error_of({.tokenizer_type = "GPT2BPETokenizer", .vocab_extra_ids = 3}),
            "vocab_extra_ids 3 with tokenizer_type GPT2BPETokenizer");
}

// The same against transformers: tests/oracle/tokenizer_test.py.
TEST(VocabFiles, AFolderWithoutTokenizerJsonNeedsAClass) {
  const test::TemporaryFolder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5})");
  folder.write("merges.txt", "#version: 0.2\na b\nĠ ab\n");
  const TokenizerOptions options{.tokenizer_model = folder.path().string()};
  const std::string has = folder.path().string() + " has vocab.json and merges.txt";
  EXPECT_EQ(error_of(options), has + ", but nothing says how they cut a text");
  folder.write("config.json", R"({"model_type": "qwen2"})");
  EXPECT_EQ(make_tokenizer(options)->encode("ab<|endoftext|>abb"), (Ids{3, 5, 3, 1}));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizerFast"})");
  EXPECT_EQ(error_of(options), has + " of a RobertaTokenizer, which is read only from a tokenizer.json");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true,
    "add_bos_token": true, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null})");
  const auto tokenizer = make_tokenizer(options);
  EXPECT_EQ(tokenizer->encode("ab", true), (Ids{6, 4}));
  EXPECT_EQ(tokenizer->encode("b</s>"), (Ids{2, 1, 7}));
  EXPECT_EQ(tokenizer->eod(), 7);
  EXPECT_EQ(tokenizer->bos(), 6);
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->decode(Ids{6, 3, 7}, /*skip_special=*/true), "ab");
  folder.write("added_tokens.json", R"({"x": 6})");
  EXPECT_EQ(error_of(options), folder.path().string() + " has an added_tokens.json of older versions of transformers");
}

}  // namespace
}  // namespace megalith
