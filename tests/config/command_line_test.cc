// The command line's forms, and what it refuses.
#include "config/command_line.h"

#include <gtest/gtest.h>

#include "config/option_value.h"

namespace megalith {
namespace {

struct Sample {
  int64_t micro_batch_size = 1;
  double lr = 1e-4;
  bool bf16 = false, no_save_optim = false;
  std::optional<bool> group_query_attention;
  std::optional<std::string> load;
  std::vector<std::string> data_path;
  std::vector<int64_t> profile_ranks;

  void visit(OptionVisitor& v) {
    v.field("micro_batch_size", micro_batch_size, "Samples.").alias("mbs");
    v.field("lr", lr, "Rate.");
    v.field("bf16", bf16, "Train in bf16.");
    v.field("no_save_optim", no_save_optim, "Do not save.");
    v.field("group_query_attention", group_query_attention, "Group.");
    v.field("load", load, "Folder.");
    v.field("data_path", data_path, "Prefixes.");
    v.field("profile_ranks", profile_ranks, "Ranks.");
  }
};

struct CommandLineTest : testing::Test {
  Sample sample;
  OptionSet set{sample};

  CommandLine read(const std::vector<std::string>& words) { return read_command_line(words, set); }
  // "name=value name=value …" of the settings, for comparison at a glance.
  std::string settings(const std::vector<std::string>& words) {
    const CommandLine line = read(words);
    for (const UserError& error : line.errors) ADD_FAILURE() << error.what();
    std::string text;
    for (const Setting& setting : line.settings) {
      text += (text.empty() ? "" : " ") + setting.name + "=" + setting.value.text();
    }
    return text;
  }
  std::string only_error(const std::vector<std::string>& words) {
    const CommandLine line = read(words);
    return line.errors.size() == 1 ? line.errors[0].message() : std::to_string(line.errors.size()) + " errors";
  }
};

TEST_F(CommandLineTest, ReadsEveryForm) {
  EXPECT_EQ(settings({"--lr", "1e-5"}), "lr=1e-5");
  EXPECT_EQ(settings({"--lr=1e-5"}), "lr=1e-5");
  EXPECT_EQ(settings({"--micro-batch-size", "2", "--micro_batch_size=4"}), "micro-batch-size=2 micro_batch_size=4");
  EXPECT_EQ(settings({"--load="}), "load=");
  EXPECT_EQ(settings({"--load=a=b"}), "load=a=b");
  EXPECT_EQ(settings({"lr=2", "--bf16"}), "lr=2 bf16=true");
  EXPECT_EQ(settings({"--modules.pre_trainer.overrides.lr", "1"}), "modules.pre_trainer.overrides.lr=1");
}

TEST_F(CommandLineTest, NegativeNumbersAreValues) {
  EXPECT_EQ(settings({"--lr", "-1e-5"}), "lr=-1e-5");
  EXPECT_EQ(settings({"--profile_ranks", "-1", "2", "--bf16"}), "profile_ranks=[-1, 2] bf16=true");
}

TEST_F(CommandLineTest, ASwitchTakesTheNextWordOnlyWhenItIsABoolean) {
  EXPECT_EQ(settings({"--bf16", "--lr", "1"}), "bf16=true lr=1");
  EXPECT_EQ(settings({"--bf16", "False"}), "bf16=False");
  const CommandLine line = read({"--bf16", "folder"});
  EXPECT_EQ(line.settings[0].value.text(), "true");
  EXPECT_EQ(line.positional, std::vector<std::string>{"folder"});
}

TEST_F(CommandLineTest, NoNegatesOnlyWhenTheWholeNameIsUnknown) {
  EXPECT_EQ(settings({"--no-bf16"}), "no-bf16=true");  // resolved later, by the same look-up
  EXPECT_EQ(settings({"--no_save_optim", "false"}), "no_save_optim=false");
  EXPECT_EQ(only_error({"--no-lr"}), "unknown option '--no-lr'. Did you mean '--lr'?");
}

TEST_F(CommandLineTest, ListsEndAtTheNextOption) {
  EXPECT_EQ(settings({"--data-path", "0.5", "a b", "0.5", "c", "--lr", "1"}), "data-path=[0.5, a b, 0.5, c] lr=1");
  EXPECT_EQ(settings({"--data_path", "0.5 a 0.5 b"}), "data_path=0.5 a 0.5 b");
  EXPECT_EQ(settings({"--data_path", "a", "lr=1"}), "data_path=a lr=1");
  EXPECT_EQ(settings({"--data_path", "x=1/wiki"}), "data_path=x=1/wiki");  // x is no option
}

TEST_F(CommandLineTest, KnownNamesOfOthersConsumeTheirValues) {
  EXPECT_EQ(settings({"--use-flash-attn", "--num-dataset-builder-threads", "8", "--lr", "1"}),
            "use-flash-attn=true num-dataset-builder-threads=8 lr=1");
  EXPECT_EQ(settings({"--no_persist_layer_norm", "true"}), "no_persist_layer_norm=true");
  EXPECT_EQ(settings({"--no-masked-softmax-fusion", "--bf16"}), "no-masked-softmax-fusion=true bf16=true");
}

TEST_F(CommandLineTest, CollectsEveryProblem) {
  const CommandLine line = read({"--micro_batchsize", "2", "3", "--lr", "--bf16", "--load", "-x", "--bogus_name=1"});
  ASSERT_EQ(line.errors.size(), 3u);
  EXPECT_EQ(line.errors[0].message(), "unknown option '--micro_batchsize'. Did you mean '--micro_batch_size'?");
  EXPECT_EQ(line.errors[1].message(), "--lr needs a value (number), but '--bf16' follows");
  EXPECT_EQ(line.errors[2].message(), "unknown option '--bogus_name'");
  EXPECT_TRUE(line.positional.empty());
}

TEST_F(CommandLineTest, MissingValuesAreNamed) {
  EXPECT_EQ(only_error({"--data_path"}), "--data_path needs a value (list of texts), but nothing follows");
  EXPECT_EQ(only_error({"--config"}), "--config needs a value (a configuration file), but nothing follows");
  EXPECT_EQ(only_error({"-x"}), "unknown argument '-x'");
}

TEST_F(CommandLineTest, ConfigHelpAndTheRestAreSetApart) {
  const CommandLine line = read({"run", "--config", "a.yaml", "--config=b.yaml", "-h", "--", "--lr", "-1"});
  EXPECT_EQ(line.config_files, (std::vector<std::string>{"a.yaml", "b.yaml"}));
  EXPECT_TRUE(line.wants_help);
  EXPECT_EQ(line.positional, (std::vector<std::string>{"run", "--lr", "-1"}));
  EXPECT_TRUE(line.settings.empty());
  EXPECT_TRUE(read({"--help"}).wants_help);
  EXPECT_EQ(read({"--exp", "x.yaml"}).config_files, std::vector<std::string>{"x.yaml"});
}

}  // namespace
}  // namespace megalith
