// The inverse cloze task: what the model gets, what is counted and measured, and what is refused.
#include "kinds/retrieval/ict.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kinds/retrieval/ict_samples.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

constexpr int64_t kIctIds = 300;

TaskSetup ict_setup(int64_t samples_at_once = 4, std::vector<int64_t> top_ks = {1, 3}) {
  return {.seed = 3,
          .vocab_size = kIctIds,
          .special_ids = {},
          .samples_at_once = samples_at_once,
          .top_ks = std::move(top_ks)};
}

// Rows as a check has them.
Batch rows_of_texts(int64_t b, int64_t s, int64_t first_sample) {
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, at::arange(b * s, at::kLong).view({b, s}).remainder(kIctIds)));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::arange(first_sample, first_sample + b, at::kLong)));
  return batch;
}

const std::vector<Unit> kWholeModel = {{.kind = "embedding", .name = "embedding", .letter = UnitLetter::kEmbedding},
                                       {.kind = "retrieval", .name = "retrieval", .letter = UnitLetter::kHead}};

TEST(IctTask, MembersAreTheTextsAndMoreIsTheQuestions) {
  const IctTask task({.task = TaskKind::kIct}, ict_setup());
  Batch rows = rows_of_texts(2, 6, 7);
  task.draw(rows);
  const ModelInput input = task.make_input(rows, at::kCPU, kWholeModel);
  EXPECT_TRUE(at::equal(input.tokens, rows.at(field::kTokens)));
  EXPECT_TRUE(at::equal(input.context.mask.key_lengths, rows.at(field::kKeyLengths)));
  EXPECT_TRUE(at::equal(input.more.at("query_tokens"), rows.at(field::kQueryTokens)));
  EXPECT_TRUE(at::equal(input.more.at("query_key_lengths"), rows.at(field::kQueryKeyLengths)));
  // Row 7 has the numbers 84 …: six of the question, six of the text.
  EXPECT_TRUE(at::equal(input.more.at("query_row_ids")[0], at::arange(84, 90, at::kLong)));
  EXPECT_TRUE(at::equal(input.context.row_ids[0], at::arange(90, 96, at::kLong)));
  ASSERT_EQ(input.terms.size(), 1U);
  EXPECT_EQ(input.terms[0].name, "loss");
}

TEST(IctTask, RowsAreCountedAndAccuraciesMeasured) {
  const IctTask task({.task = TaskKind::kIct}, ict_setup());
  EXPECT_EQ(task.count_weights(rows_of_texts(3, 4, 0)), std::vector<double>{3});
  EXPECT_EQ(task.evaluated_names(), (std::vector<std::string>{"loss", "top1_acc", "top3_acc"}));
  ModelOutput output;
  for (const char* name : {"loss", "top1_acc", "top3_acc"}) {
    const double sum = std::string(name) == "loss" ? 2.5 : 100;
    output.terms.push_back(
        {.name = name, .sum = at::full({}, sum), .weight = at::full({}, 3.0), .objective = {}});
  }
  const at::Tensor sums = task.evaluate(rows_of_texts(3, 4, 0), output);
  EXPECT_TRUE(at::equal(sums, at::tensor({2.5, 3.0, 100.0, 3.0, 100.0, 3.0}, at::kDouble).view({3, 2}))) << sums;
}

TEST(IctTask, ACheckRowsQuestionDependsOnItsPlaceInTheRun) {
  const IctTask task({.task = TaskKind::kIct}, ict_setup());
  Batch whole = rows_of_texts(6, 10, 100), tail = whole.rows(4, 2);
  task.draw(whole);
  task.draw(tail);
  const Batch same = whole.rows(4, 2);
  for (const std::string_view name : {field::kQueryTokens, field::kQueryKeyLengths, field::kKeyLengths}) {
    EXPECT_TRUE(at::equal(tail.at(name), same.at(name))) << name;
  }
  EXPECT_GE(whole.at(field::kQueryKeyLengths).min().item<int64_t>(), 5);
  EXPECT_LT(whole.at(field::kQueryTokens).max().item<int64_t>(), kIctIds);
}

std::string said_of(const std::vector<UserError>& errors) {
  std::string text;
  for (const UserError& error : errors) text += error.message() + "\n";
  return text;
}

TEST(IctTask, RefusesWhatItCannotTrain) {
  ModelConfig biencoder, bert;
  biencoder.model_type = ModelType::kBiencoder;
  bert.model_type = ModelType::kBert;
  DataOptions mock, files;
  mock.mock_data = true;
  files.data_path = {"x"};
  const TaskOptions plain{.task = TaskKind::kIct}, titled{.task = TaskKind::kIct, .titles_data_path = "titles"};
  EXPECT_EQ(said_of(IctTask(plain, ict_setup()).check(biencoder, mock)), "");
  EXPECT_EQ(said_of(IctTask(plain, ict_setup(1, {})).check(bert, mock)),
            "task ict compares vectors of questions and texts, and model_type is another than biencoder\n"
            "task ict with a set of one sample (micro_batch_size 1 on one data-parallel rank): there is no other text "
            "to tell the right one from, and the loss is always 0\n");
  EXPECT_EQ(said_of(IctTask(plain, ict_setup(4, {1, 5})).check(biencoder, mock)),
            "retriever_report_topk_accuracies has 5, and a set has 4 samples (a microbatch of all data-parallel "
            "ranks)\n");
  EXPECT_EQ(said_of(IctTask(titled, ict_setup()).check(biencoder, mock)),
            "titles_data_path is given with mock_data, whose texts have no titles\n");
  const std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();
  TaskSetup with_bytes = ict_setup();
  with_bytes.tokenizer = bytes.get();
  EXPECT_EQ(said_of(IctTask(titled, with_bytes).check(biencoder, files)),
            "task ict needs [CLS], [SEP], and " + bytes->name() + " has none\n");
  files.data_path = {"x", "y"};
  EXPECT_NE(said_of(IctTask(titled, with_bytes).check(biencoder, files)).find("titles of one data set"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith
