// Files that a reader could stumble over in one known way. Random damage to every format: tests/fuzz.
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/temporary_folder.h"
#include "tokenizer/small_files.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

std::string sentencepiece_model(const std::string& charsmap) {
  return test::sentencepiece_model(1, {{"▁", -1, 1}, {"a", -3, 1}, {"x", -2, 1}, {"é", -2, 1}}, charsmap);
}

TEST(HostileFiles, IdsAroundATextAreOfTheVocabulary) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("outside.json", R"({"model":{"type":"WordPiece","unk_token":"[UNK]",
  "max_input_chars_per_word":100,"vocab":{"[UNK]":0,"the":1,"##ick":2,"[SEP]":3}},
  "post_processor":{"type":"BertProcessing","sep":["[SEP]",4],"cls":["[UNK]",0]}})");
  try {
    make_tokenizer({.tokenizer_model = file.string()});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), file.string() + ": post_processor puts the id 4 around a text, but the ids end at 3");
  }
}

// A map that replaces one byte.
std::string charsmap_of(uint8_t key, const std::string& replacement) {
  constexpr uint32_t kLeaf = 0x100;  // the value's place
  std::vector<uint32_t> units(kLeaf + 1);
  units[key] = key | 0x100 | (key ^ kLeaf) << 10;
  units[kLeaf] = 1u << 31;
  const auto num_bytes = static_cast<uint32_t>(units.size() * sizeof units[0]);
  std::string map(reinterpret_cast<const char*>(&num_bytes), sizeof num_bytes);
  map.append(reinterpret_cast<const char*>(units.data()), num_bytes);
  return map + replacement + '\0';
}

TEST(HostileFiles, MapsOfCharactersKeepTextsInUtf8) {
  const test::TemporaryFolder folder;
  const auto tokenizer_with = [&](const std::string& map) {
    return make_tokenizer({.tokenizer_model = folder.write("m.model", sentencepiece_model(map)).string()});
  };
  const std::vector<int32_t> usual = tokenizer_with("")->encode("xaé");
  EXPECT_EQ(tokenizer_with(charsmap_of('x', "a"))->encode("xaé"), tokenizer_with("")->encode("aaé"));
  // The first byte of é, and no end of its replacement's character.
  EXPECT_EQ(tokenizer_with(charsmap_of(0xC3, "a"))->encode("xaé"), usual);
  for (const char* wrong : {"\xA9", "\xC3", "a\xFF"}) {
    EXPECT_THROW(tokenizer_with(charsmap_of('x', wrong)), UserError) << wrong;
  }
}

TEST(HostileFiles, ExpressionsDoNotCutCharacters) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("bytes.json", R"({"model":{"type":"WordLevel","vocab":{"<unk>":0},"unk_token":"<unk>"},
  "pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\C"},"behavior":"Isolated","invert":false}})");
  EXPECT_THROW(make_tokenizer({.tokenizer_model = file.string()}), UserError);
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
