// The tables of other trainers' keys.
#include "compat/file_keys.h"

#include <gtest/gtest.h>

#include "config/option.h"
#include "train/config.h"

namespace megalith {
namespace {

TEST(FileKeys, EveryRowCanBeUsed) {
  Config config;
  const OptionSet options(config);
  for (const FileKeys* keys :
       {&torchtitan_keys(), &torchtune_keys(), &axolotl_keys(), &llamafactory_keys(), &trl_keys()}) {
    for (const FileKey& key : keys->all()) {
      const bool may_be_option = key.kind == FileKeyKind::kOption || key.kind == FileKeyKind::kAlias;
      EXPECT_TRUE(may_be_option || options.find(key.text) == nullptr) << key.name;
      EXPECT_TRUE(key.kind != FileKeyKind::kOption || options.find(key.text) != nullptr) << key.name;
      const bool has_text = key.kind != FileKeyKind::kRule && key.kind != FileKeyKind::kNoEffect;
      EXPECT_EQ(has_text, !key.text.empty()) << key.name;
      if (key.kind != FileKeyKind::kAlias) continue;
      ASSERT_NE(keys->find(key.text), nullptr) << key.name;
      EXPECT_EQ(keys->find(key.text)->kind, FileKeyKind::kRule) << key.name;
    }
  }
}

TEST(FileKeys, AKeyBeatsTheSectionThatItIsIn) {
  EXPECT_EQ(torchtitan_keys().find("activation_checkpoint.mode")->kind, FileKeyKind::kRule);
  EXPECT_EQ(torchtitan_keys().find("activation_checkpoint.early_stop")->name, "activation_checkpoint.*");
  EXPECT_EQ(torchtitan_keys().find("activation_checkpoint"), nullptr);
  EXPECT_TRUE(torchtune_keys().is_section("optimizer"));
  EXPECT_EQ(torchtune_keys().find("tokenizer.merges_file")->fallback, "null");
  EXPECT_EQ(torchtitan_keys().find("debug.seed")->fallback, "");
}

}  // namespace
}  // namespace megalith
