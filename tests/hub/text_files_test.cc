// Files that `prepare --input org/name` takes of a data set on the hub.
#include "hub/text_files.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

using Files = std::vector<std::string>;

std::string refused(const Files& files, const std::string& inner = "", const std::optional<std::string>& split = {}) {
  try {
    choose_texts(files, inner, "org/set", split);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(HubTexts, AreFilesOfTheseNames) {
  for (const char* name : {"a.jsonl", "b/a.PARQUET", "a.txt.gz", "a.csv.zst", "x.arrow", "x.feather", "x.tsv"}) {
    EXPECT_TRUE(is_texts_name(name)) << name;
  }
  for (const char* name : {"README.md", "dataset_info.json", ".hidden.jsonl", "a/_SUCCESS.txt", "a.bin", "a.tar.gz"}) {
    EXPECT_FALSE(is_texts_name(name)) << name;
  }
}

TEST(HubTexts, AreThoseForTrainingWhereSomeAre) {
  const Files split = {"README.md", "data/test-0.parquet", "data/train-1.parquet", "data/train-0.parquet"};
  EXPECT_EQ(choose_texts(split, "", "org/set"), (Files{"data/train-0.parquet", "data/train-1.parquet"}));
  EXPECT_EQ(choose_texts({"b.jsonl", "a.jsonl"}, "", "org/set"), (Files{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(choose_texts({"training_notes.jsonl", "other.jsonl"}, "", "org/set").size(), 2u);
  // A list of words beside tables is no text.
  EXPECT_EQ(choose_texts({"words.txt", "a.jsonl"}, "", "org/set"), Files{"a.jsonl"});
  EXPECT_EQ(choose_texts({"a.txt", "b.txt"}, "", "org/set").size(), 2u);
}

TEST(HubTexts, AreThoseOfTheSplitThatIsNamed) {
  const Files chats = {"data/train_sft-0.parquet", "data/train_gen-0.parquet", "data/test_sft-0.parquet"};
  EXPECT_EQ(choose_texts(chats, "", "org/set", "train_sft"), Files{"data/train_sft-0.parquet"});
  EXPECT_EQ(choose_texts(chats, "data", "org/set", "test"), Files{"data/test_sft-0.parquet"});
  EXPECT_EQ(choose_texts({"sft/0.parquet", "gen/0.parquet"}, "", "org/set", "sft"), Files{"sft/0.parquet"});
  EXPECT_NE(refused(chats, "", "valid").find("holds no texts of the split 'valid'; it has: data/test_sft-0.parquet"),
            std::string::npos);
}

TEST(HubTexts, AreTheOneFileOrFolderThatIsNamed) {
  const Files sets = {"small/train.parquet", "small/test.parquet", "large/train.parquet"};
  EXPECT_EQ(choose_texts(sets, "small/test.parquet", "org/set"), Files{"small/test.parquet"});
  EXPECT_EQ(choose_texts(sets, "small", "org/set"), Files{"small/train.parquet"});
  EXPECT_EQ(refused(sets), "the dataset org/set has several configurations: large, small\n  write org/set/large");
  EXPECT_EQ(refused(sets, "medium"),
            "the dataset org/set holds no texts in 'medium'; it has: large/train.parquet, small/test.parquet, "
            "small/train.parquet\n  write org/set/FILE or org/set/FOLDER");
}

}  // namespace
}  // namespace megalith
