// Files that a reader could stumble over in one known way. Random damage to every format: tests/fuzz.
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/temporary_folder.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

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
