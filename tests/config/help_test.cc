// Texts derived from declarations for people, and that the resolved configuration reads back.
#include "config/help.h"

#include <gtest/gtest.h>

#include <sstream>

#include "config/resolve.h"
#include "core/strings.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

struct HelpSample {
  int64_t micro_batch_size = 1;
  double lr = 1e-4;
  bool bf16 = false;
  std::optional<std::string> load;
  std::vector<std::string> data_path;
  std::string decay = "linear";

  void visit(OptionVisitor& v) {
    v.group("Batch");
    v.field("micro_batch_size", micro_batch_size, "Samples in one forward pass.")
        .unit("samples")
        .at_least(1)
        .alias("mbs");
    v.group("Learning rate");
    v.field("lr", lr, "Peak learning rate, reached after the warm-up and left by the decay that lr_decay_style names.")
        .above(0);
    v.field("lr_decay_style", decay, "How it falls | or <stays>.").words({"constant", "linear"});
    v.group("");
    v.field("bf16", bf16, "Train in bf16.").opposite("disable_bf16");
    v.field("a_name_that_is_longer_than_its_column", load, "Folder to load.");
    v.group("Batch");
    v.field("data_path", data_path, "Prefixes.");
  }
};

TEST(Help, ShowsGroupsDefaultsUnitsRangesAndAliases) {
  HelpSample sample;
  OptionSet set(sample);
  const std::string page = help_text(set);
  EXPECT_EQ(page.substr(0, page.find("\n\n")),
            "Batch\n"
            "  --micro_batch_size N            Samples in one forward pass. [in samples; at least 1; default 1;\n"
            "                                  also --mbs]\n"
            "  --data_path TEXT …              Prefixes. [list of texts; default []]");
  EXPECT_NE(page.find("[unset by default]"), std::string::npos);
  EXPECT_NE(page.find("[default false; off with --disable_bf16]"), std::string::npos);
  EXPECT_NE(page.find("\nOptions\n  --bf16 "), std::string::npos);
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 102u) << line;  // "…" is three bytes
}

TEST(Help, IsShortForTheOptionsOfTopics) {
  HelpSample sample;
  OptionSet set(sample);
  const std::vector<HelpTopic> topics = {{"Rate", {"lr", "lr_decay_style", "no_such_option"}},
                                         {"Nothing", {"no_such_option"}},
                                         {"Others", {"bf16", "micro_batch_size", "data_path"}}};
  EXPECT_EQ(short_help_text(set, topics, [](const Option& option) { return option.name() != "data_path"; }),
            "Rate\n"
            "  --lr X                          Peak learning rate, reached after the warm-up and left by the\n"
            "                                  decay that lr_decay_style names. [0.0001]\n"
            "  --lr_decay_style constant|linear\n"
            "                                  How it falls | or <stays>. [linear]\n"
            "\n"
            "Others\n"
            "  --bf16                          Train in bf16.\n"
            "  --micro_batch_size N            Samples in one forward pass. [1]\n");
}

TEST(Help, FirstSentencesLeaveOutListsOfValues) {
  EXPECT_EQ(first_sentence("Samples of one step; default: all."), "Samples of one step.");
  EXPECT_EQ(first_sentence("Rule of the update. adam: AdamW. sgd: SGD."), "Rule of the update.");
  EXPECT_EQ(first_sentence("Folder to resume from: the newest."), "Folder to resume from.");
  EXPECT_EQ(first_sentence("a: this. b: that."), "a: this.");
  EXPECT_EQ(first_sentence("Seed of weights."), "Seed of weights.");
}

TEST(Help, AWordIsATopicAnOptionOrAPartOfNames) {
  HelpSample sample;
  OptionSet set(sample);
  const auto on = [&](std::string_view word) { return help_on(set, word).value_or("nothing"); };
  EXPECT_EQ(on("batch").substr(0, 29), "Batch\n  --micro_batch_size N ");
  EXPECT_EQ(on("rate").substr(0, 14), "Learning rate\n");
  EXPECT_EQ(on("mbs"),
            "--micro_batch_size N\n"
            "  Samples in one forward pass.\n"
            "\n"
            "  takes       integer at least 1\n"
            "  unit        samples\n"
            "  default     1\n"
            "  also        mbs\n"
            "  variable    MEGALITH_MICRO_BATCH_SIZE\n"
            "  topic       Batch\n");
  EXPECT_EQ(on("learning_rate").substr(0, 14), "Learning rate\n");  // a topic's title comes before a word for lr
  EXPECT_EQ(on("per_device_train_batch_size").substr(0, 87),
            "per_device_train_batch_size is Hugging Face's Trainer's word for micro_batch_size.\n\n--m");
  EXPECT_EQ(on("decay_st").substr(0, 37), "Learning rate\n  --lr_decay_style WORD");
  EXPECT_EQ(on("use_flash_attn"), "use_flash_attn has no effect here: operators are always fused.\n");
  EXPECT_EQ(on("nonsense"), "nothing");
  EXPECT_FALSE(help_on(set, "lr", [](const Option& option) { return option.group() == "Batch"; }).has_value());
}

TEST(Help, IsAMarkdownPageToo) {
  HelpSample sample;
  OptionSet set(sample);
  const std::string page = options_markdown(set, "Options of train");
  EXPECT_NE(page.find("# Options of train\n"), std::string::npos);
  EXPECT_NE(page.find("| `micro_batch_size`, `mbs` | integer | `1` | samples | at least 1 | Samples in"),
            std::string::npos);
  EXPECT_NE(page.find("How it falls \\| or &lt;stays>."), std::string::npos);
}

TEST(ResolvedYaml, ReadsBackToTheSameValues) {
  HelpSample sample;
  OptionSet set(sample);
  const OptionSource source{OptionLayer::kCommandLine, "command line"};
  set.find("micro_batch_size")->set("4", source);
  set.find("lr")->set("3e-4", source);
  set.find("bf16")->set("yes", source);
  const std::vector<std::string> paths = {"0.5", "with blank/wiki", "0.5", "a: \"b\" # c", "null"};
  set.find("data_path")->assign({WrittenValue::Form::kList, paths}, source);
  set.find("a_name_that_is_longer_than_its_column")->assign({WrittenValue::Form::kQuoted, {"null"}}, source);

  const test::TemporaryFolder folder;
  for (const Shown shown : {Shown::kAll, Shown::kNonDefault}) {
    const auto file = folder.write("resolved.yaml", resolved_yaml(set, shown));
    HelpSample again;
    OptionSet read(again);
    resolve(read, {.config_file = file});
    for (const auto& option : set.options()) EXPECT_EQ(read.find(option->name())->text(), option->text());
  }
}

TEST(ResolvedYaml, ShowsOnlyWhatDiffersAndWhere) {
  HelpSample sample;
  OptionSet set(sample);
  EXPECT_EQ(resolved_yaml(set, Shown::kNonDefault), "");
  set.find("lr")->set("1", {OptionLayer::kFile, "recipe.yaml:3"});
  EXPECT_EQ(resolved_yaml(set, Shown::kNonDefault),
            "# Learning rate\nlr: 1                                               # recipe.yaml:3\n");
}

TEST(Explain, ListsTheLayersAndMarksTheOneInEffect) {
  HelpSample sample;
  OptionSet set(sample);
  Option& lr = *set.find("lr");
  lr.offer(WrittenValue::of("2"), {OptionLayer::kCommandLine, "command line"});
  lr.offer(WrittenValue::of("1"), {OptionLayer::kFile, "recipe.yaml:3"});
  const std::string page = explain(lr);
  EXPECT_NE(page.find("lr: 2\n"), std::string::npos);
  EXPECT_NE(page.find("    default "), std::string::npos);
  EXPECT_NE(page.find("  * command line"), std::string::npos);
  EXPECT_NE(page.find("    configuration file  recipe.yaml:3 "), std::string::npos);
}

}  // namespace
}  // namespace megalith
