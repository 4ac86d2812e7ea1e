// The scripts of Stanford's Megatron-LM: the files, checkpoints and made-up data that their variables name.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "compat/launch_plan.h"

namespace megalith {
namespace {

// A machine with two GPUs and these files.
LaunchPlan planned_with(FrontEnd front_end, std::vector<std::string> words, std::set<std::string> files = {}) {
  LaunchInputs inputs;
  inputs.front_end = front_end;
  inputs.words = std::move(words);
  inputs.now = "now";
  inputs.count_gpus = [] { return 2; };
  inputs.exists = [files](const std::string& path) { return files.contains(path); };
  return plan_launch(inputs);
}

std::string value_of(const LaunchPlan& plan, std::string_view name) {
  const PlannedOption* found = plan.find(name);
  return found == nullptr ? "(none)" : found->value;
}

std::string what_is_wrong(const LaunchPlan& plan) {
  std::string text;
  for (const UserError& error : plan.errors) text += fmt::format("{}\n", error.what());
  return text;
}

std::string all_notes(const LaunchPlan& plan) { return fmt::format("{}", fmt::join(plan.notes, "\n")); }

constexpr FrontEnd kScripts[] = {
    FrontEnd::kBert,           FrontEnd::kBertDistributed, FrontEnd::kBertWithMp, FrontEnd::kGpt,
    FrontEnd::kGptDistributed, FrontEnd::kGptWithMp,       FrontEnd::kGpt3,       FrontEnd::kT5,
    FrontEnd::kT5Distributed,  FrontEnd::kT5WithMp};

TEST(StanfordScripts, ARunNeedsDataAndSaysHowToGetSome) {
  for (const FrontEnd script : kScripts) {
    const LaunchPlan plan = planned_with(script, {});
    EXPECT_NE(what_is_wrong(plan).find("DATA_PATH is not set"), std::string::npos) << row_of(script).name;
    EXPECT_NE(what_is_wrong(plan).find("MOCK_DATA=1"), std::string::npos);
  }
}

TEST(StanfordScripts, MadeUpDataNeedsNoFiles) {
  for (const FrontEnd script : kScripts) {
    for (const char* word : {"MOCK_DATA=1", "DRY_RUN=1", "TINY=1"}) {
      const LaunchPlan plan = planned_with(script, {word});
      EXPECT_EQ(what_is_wrong(plan), "") << row_of(script).name << " " << word;
      EXPECT_EQ(value_of(plan, "mock_data"), "true");
      EXPECT_EQ(value_of(plan, "tokenizer_type"), "(none)");
      EXPECT_EQ(value_of(plan, "split"), "(none)");
      EXPECT_NE(value_of(plan, "vocab_size"), "(none)");
    }
  }
}

TEST(StanfordScripts, DataIsReadWithTheVocabularyThatItWasMadeWith) {
  const std::set<std::string> files = {"my_text_sentence.idx", "bert-vocab.txt", "other.txt"};
  const LaunchPlan plan = planned_with(FrontEnd::kT5, {"DATA_PATH=my_text_sentence"}, files);
  EXPECT_EQ(what_is_wrong(plan), "");
  EXPECT_EQ(value_of(plan, "data_path"), "my_text_sentence");
  EXPECT_EQ(value_of(plan, "tokenizer_type"), "BertWordPieceLowerCase");
  EXPECT_EQ(value_of(plan, "vocab_file"), "bert-vocab.txt");
  EXPECT_EQ(value_of(plan, "vocab_extra_ids"), "100");
  EXPECT_EQ(value_of(plan, "vocab_size"), "(none)");
  EXPECT_EQ(value_of(plan, "split"), "949,50,1");
  const std::vector<std::string> words = {"DATA_PATH=my_text_sentence", "VOCAB_FILE=other.txt",
                                          "TOKENIZER_TYPE=BertWordPieceCase"};
  const LaunchPlan other = planned_with(FrontEnd::kBert, words, files);
  EXPECT_EQ(value_of(other, "vocab_file"), "other.txt");
  EXPECT_EQ(value_of(other, "tokenizer_type"), "BertWordPieceCase");
  EXPECT_EQ(value_of(other, "vocab_extra_ids"), "(none)");
}

TEST(StanfordScripts, AllMissingFilesAreNamedTogether) {
  const LaunchPlan plan = planned_with(FrontEnd::kGpt, {"DATA_PATH=0.3 first 0.7 second"}, {"first.idx"});
  const std::string wrong = what_is_wrong(plan);
  EXPECT_NE(wrong.find("there is no second.idx"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("VOCAB_FILE=gpt2-vocab.json: there is no such file"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("MERGE_FILE=gpt2-merges.txt: there is no such file"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("first.idx"), std::string::npos) << wrong;
  EXPECT_EQ(plan.errors.size(), 3U);
}

TEST(StanfordScripts, AVocabularyThatIsNamedIsOpenedEvenForMadeUpSentences) {
  const LaunchPlan plan = planned_with(FrontEnd::kBert, {"MOCK_DATA=1", "VOCAB_FILE=v.txt"}, {"v.txt"});
  EXPECT_EQ(value_of(plan, "vocab_file"), "v.txt");
  EXPECT_EQ(value_of(plan, "vocab_size"), "(none)");
  const LaunchPlan absent = planned_with(FrontEnd::kBert, {"DRY_RUN=1", "VOCAB_FILE=v.txt"});
  EXPECT_NE(what_is_wrong(absent).find("VOCAB_FILE=v.txt: there is no such file"), std::string::npos);
}

TEST(StanfordScripts, ATypedTokenizerReplacesTheScripts) {
  const LaunchPlan plan = planned_with(FrontEnd::kBert, {"DATA_PATH=my", "--tokenizer-model", "folder"}, {"my.idx"});
  EXPECT_EQ(what_is_wrong(plan), "");
  EXPECT_EQ(value_of(plan, "tokenizer_type"), "(none)");
  EXPECT_EQ(value_of(plan, "vocab_file"), "(none)");
}

TEST(StanfordScripts, OneFolderHoldsWhatIsSavedAndGoneOnFrom) {
  const LaunchPlan plan = planned_with(FrontEnd::kGpt, {"MOCK_DATA=1", "CHECKPOINT_PATH=checkpoints"});
  EXPECT_EQ(value_of(plan, "save"), "checkpoints");
  EXPECT_EQ(value_of(plan, "load"), "checkpoints");
  EXPECT_EQ(value_of(plan, "save_interval"), "10000");
  const LaunchPlan without = planned_with(FrontEnd::kGpt, {"MOCK_DATA=1"});
  EXPECT_EQ(value_of(without, "save_interval"), "(none)");
  EXPECT_NE(all_notes(without).find("the run saves nothing"), std::string::npos);
}

TEST(StanfordScripts, RanksAreThoseOfUpstream) {
  EXPECT_EQ(planned_with(FrontEnd::kBert, {"MOCK_DATA=1"}).world_size(), 1);
  EXPECT_EQ(planned_with(FrontEnd::kBertDistributed, {"MOCK_DATA=1"}).world_size(), 2);
  EXPECT_EQ(planned_with(FrontEnd::kBert, {"DRY_RUN=1"}).world_size(), 1);
  EXPECT_EQ(planned_with(FrontEnd::kBertDistributed, {"DRY_RUN=1"}).world_size(), 8);
  EXPECT_EQ(planned_with(FrontEnd::kGpt3, {"DRY_RUN=1"}).world_size(), 1024);
  const LaunchPlan run = planned_with(FrontEnd::kGpt3, {"MOCK_DATA=1"});
  EXPECT_TRUE(run.uses_slurm);
  EXPECT_EQ(run.num_nodes, 128);
}

TEST(StanfordScripts, AToyRunsHereForAFewSteps) {
  const LaunchPlan plan = planned_with(FrontEnd::kGpt3, {"TINY=1"});
  EXPECT_EQ(what_is_wrong(plan), "");
  EXPECT_FALSE(plan.uses_slurm);
  EXPECT_EQ(plan.num_nodes, 1);
  EXPECT_EQ(value_of(plan, "train_iters"), "10");
  for (const char* name : {"train_samples", "rampup_batch_size", "lr_decay_samples", "lr_warmup_samples"}) {
    EXPECT_EQ(value_of(plan, name), "(none)") << name;
  }
  EXPECT_TRUE(planned_with(FrontEnd::kGpt3, {"TINY=1", "SLURM=1"}).uses_slurm);
  EXPECT_EQ(value_of(planned_with(FrontEnd::kBert, {"TINY=1"}), "lr_decay_iters"), "(none)");
}

TEST(StanfordScripts, StepsThatAreTypedReplaceSamples) {
  const LaunchPlan plan = planned_with(FrontEnd::kGpt3, {"DRY_RUN=1", "--train-iters", "50"});
  EXPECT_EQ(value_of(plan, "train_samples"), "(none)");
  EXPECT_EQ(value_of(plan, "rampup_batch_size"), "(none)");
  EXPECT_NE(all_notes(plan).find("counted in steps"), std::string::npos);
  EXPECT_EQ(value_of(planned_with(FrontEnd::kGpt3, {"DRY_RUN=1"}), "rampup_batch_size"), "16,16,5859375");
}

}  // namespace
}  // namespace megalith
