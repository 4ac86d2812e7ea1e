// BERT's and T5's tasks: what a stage gets, what divides the losses, what a check's rows get, and what is refused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kinds/encoder/bert.h"
#include "kinds/encoder/masked_samples.h"
#include "kinds/seq2seq/t5.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

constexpr int64_t kIds = 300;

TaskSetup sentence_setup(bool has_sentence_head = true) {
  return {.seed = 3, .vocab_size = kIds, .special_ids = {}, .has_sentence_head = has_sentence_head};
}

BertTask bert_task(bool has_sentence_head = true) {
  return {{.task = TaskKind::kBert}, sentence_setup(has_sentence_head)};
}

T5Task t5_task() { return {{.task = TaskKind::kT5, .decoder_seq_length = 12}, sentence_setup()}; }

// Rows as a check has them.
Batch plain_rows(int64_t b, int64_t s, int64_t first_sample) {
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, at::arange(b * s, at::kLong).view({b, s}).remainder(kIds)));
  batch.set(BatchField::of_tokens(field::kLabels, at::arange(b * s, at::kLong).view({b, s}).remainder(kIds)));
  batch.set(BatchField::of_tokens(field::kLossWeights, at::ones({b, s}, at::kFloat)));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::arange(first_sample, first_sample + b, at::kLong)));
  return batch;
}

std::vector<Unit> stage_of(const std::string& kind, UnitLetter letter) {
  return {{.kind = kind, .name = kind, .letter = letter}};
}

TEST(BertTask, AStageGetsWhatItReads) {
  const BertTask task = bert_task();
  Batch rows = plain_rows(3, 8, 5);
  task.draw(rows);
  const ModelInput first = task.make_input(rows, at::kCPU, stage_of("embedding", UnitLetter::kEmbedding));
  const ModelInput last = task.make_input(rows, at::kCPU, stage_of("head", UnitLetter::kHead));
  EXPECT_TRUE(at::equal(first.more.at("token_types"), rows.at(field::kTokenTypes)));
  EXPECT_EQ(first.more.find("sentence_labels"), nullptr);
  EXPECT_TRUE(at::equal(last.more.at("sentence_labels"), rows.at(field::kSentenceLabels)));
  EXPECT_EQ(last.more.find("token_types"), nullptr);
  EXPECT_TRUE(at::equal(last.context.mask.key_lengths, rows.at(field::kKeyLengths)));
  ASSERT_EQ(last.terms.size(), 2U);
  EXPECT_EQ(last.terms[1].name, "sop loss");
  EXPECT_FALSE(
      bert_task(false).make_input(rows, at::kCPU, stage_of("head", UnitLetter::kHead)).more.find("sentence_labels"));
}

TEST(BertTask, EachLossHasItsOwnWeight) {
  Batch rows = plain_rows(4, 8, 0);
  const BertTask task = bert_task();
  task.draw(rows);
  const double tokens = rows.at(field::kLossWeights).sum().item<double>();
  EXPECT_EQ(task.loss_names(), (std::vector<std::string>{"lm loss", "sop loss"}));
  EXPECT_EQ(task.count_weights(rows), (std::vector<double>{tokens, 4}));
  EXPECT_EQ(bert_task(false).count_weights(rows), std::vector<double>{tokens});
  // A row is on two ranks, and its sentences count on the one with its first token.
  const std::vector<double> first = task.count_weights(rows.part(2, 0)), second = task.count_weights(rows.part(2, 1));
  EXPECT_EQ(first[0] + second[0], tokens);
  EXPECT_EQ(first[1], 4);
  EXPECT_EQ(second[1], 0);
}

TEST(BertTask, EvaluationMeasuresBothLossesAndTheAccuracy) {
  Batch rows = plain_rows(2, 4, 0);
  const BertTask task = bert_task();
  task.draw(rows);
  EXPECT_EQ(task.evaluated_output(), HeadOutput::kLoss);
  ModelOutput output;
  output.token_losses = at::full({2, 4}, 3.0);
  output.terms = {{.name = "lm loss", .sum = {}, .weight = {}, .objective = {}},
                  {.name = "sop loss", .sum = at::full({}, 1.25), .weight = at::full({}, 2.0), .objective = {}},
                  {.name = "sop accuracy", .sum = at::full({}, 1.0), .weight = at::full({}, 2.0), .objective = {}}};
  EXPECT_EQ(task.evaluated_names(), (std::vector<std::string>{"lm loss", "sop loss", "sop accuracy"}));
  EXPECT_EQ(task.measured_names(), std::vector<std::string>{"sop accuracy"});
  EXPECT_TRUE(bert_task(false).measured_names().empty());
  const at::Tensor sums = task.evaluate(rows, output);
  const double tokens = rows.at(field::kLossWeights).sum().item<double>();
  EXPECT_TRUE(at::equal(sums, at::tensor({3 * tokens, tokens, 1.25, 2.0, 1.0, 2.0}, at::kDouble).view({3, 2}))) << sums;
  EXPECT_EQ(bert_task(false).evaluated_output(), HeadOutput::kTokenLosses);
}

TEST(BertTask, ACheckRowsSegmentsDependOnItsPlaceInTheRun) {
  Batch whole = plain_rows(6, 10, 100), tail = whole.rows(4, 2);
  const BertTask task = bert_task();
  task.draw(whole);
  task.draw(tail);
  const Batch same = whole.rows(4, 2);
  for (const std::string_view name : {field::kTokenTypes, field::kKeyLengths, field::kSentenceLabels}) {
    EXPECT_TRUE(at::equal(tail.at(name), same.at(name))) << name;
  }
  const at::Tensor place = at::arange(10, at::kLong).unsqueeze(0), length = whole.at(field::kKeyLengths).unsqueeze(1);
  EXPECT_EQ((whole.at(field::kLossWeights) * place.ge(length)).sum().item<double>(), 0) << "padding has no loss";
  EXPECT_GT(whole.at(field::kTokenTypes).sum().item<int64_t>(), 0);
}

TEST(T5Task, MembersAreTheDecodersAndMoreIsTheEncoders) {
  const T5Task task = t5_task();
  Batch rows = plain_rows(2, 6, 7);
  rows.set(BatchField::of_tokens(field::kEncoderTokens, at::arange(20, at::kLong).view({2, 10})));
  rows.set(BatchField::of_rows(field::kEncoderKeyLengths, at::tensor({10, 4}, at::kLong)));
  rows.set(BatchField::of_rows(field::kKeyLengths, at::tensor({6, 5}, at::kLong)));
  const ModelInput input = task.make_input(rows, at::kCPU, stage_of("encoder embedding", UnitLetter::kEmbedding));
  EXPECT_EQ(input.context.b, 2);
  EXPECT_EQ(input.context.s, 6);
  EXPECT_TRUE(at::equal(input.tokens, rows.at(field::kTokens)));
  EXPECT_TRUE(at::equal(input.more.at("encoder_tokens"), rows.at(field::kEncoderTokens)));
  EXPECT_TRUE(at::equal(input.context.mask.key_lengths, at::tensor({6, 5}, at::kLong)));
  // Row 7 has the numbers 7·16 …: ten of the encoder, six of the decoder.
  EXPECT_TRUE(at::equal(input.more.at("encoder_row_ids")[0], at::arange(112, 122, at::kLong)));
  EXPECT_TRUE(at::equal(input.context.row_ids[0], at::arange(122, 128, at::kLong)));
  const ModelInput middle = task.make_input(rows, at::kCPU, stage_of("decoder layer", UnitLetter::kLayer));
  EXPECT_FALSE(middle.tokens.defined());
  EXPECT_EQ(middle.more.find("encoder_tokens"), nullptr);
  EXPECT_TRUE(at::equal(middle.more.at("encoder_key_lengths"), at::tensor({10, 4}, at::kLong)));
  EXPECT_TRUE(task.make_input(rows, at::kCPU, stage_of("decoder embedding", UnitLetter::kNone)).tokens.defined());
}

TEST(T5Task, ACheckRowGetsAnEncodersTokens) {
  Batch rows = plain_rows(3, 8, 0), one = rows.rows(2, 1);
  t5_task().draw(rows);
  t5_task().draw(one);
  EXPECT_TRUE(at::equal(one.at(field::kEncoderTokens)[0], rows.at(field::kEncoderTokens)[2]));
  EXPECT_GE(rows.at(field::kEncoderKeyLengths).min().item<int64_t>(), 4);
  EXPECT_LT(rows.at(field::kEncoderTokens).max().item<int64_t>(), kIds);
}

std::string messages_of(const std::vector<UserError>& errors) {
  std::string text;
  for (const UserError& error : errors) text += error.message() + "\n";
  return text;
}

TEST(SentenceTasks, RefuseWhatTheyCannotTrain) {
  ModelConfig both_sides, causal;
  both_sides.causal = false;
  both_sides.num_layers = causal.num_layers = 2;
  causal.max_position_embeddings = 8;
  DataOptions files, mock;
  files.data_path = {"x"};
  mock.mock_data = true;
  EXPECT_EQ(messages_of(bert_task().check(both_sides, mock)), "");
  EXPECT_EQ(messages_of(bert_task().check(causal, mock)),
            "task bert needs attention to both sides, and is_causal is true\n");
  EXPECT_EQ(messages_of(bert_task().check(both_sides, files)),
            "task bert needs the tokenizer that the data was made with\n");
  const std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();
  TaskSetup with_bytes = sentence_setup();
  with_bytes.tokenizer = bytes.get();
  EXPECT_EQ(messages_of(BertTask({.task = TaskKind::kBert}, with_bytes).check(both_sides, files)),
            "task bert needs [CLS], [SEP], [MASK], and " + bytes->name() + " has none\n");
  EXPECT_EQ(messages_of(T5Task({.task = TaskKind::kT5, .decoder_seq_length = 12}, with_bytes).check(causal, files)),
            "task t5 needs sentinels (<extra_id_0>, <extra_id_1>, …), and " + bytes->name() +
                " has none\n"
                "task t5 needs a model of an encoder and a decoder, and this one is a single stack\n"
                "decoder_seq_length 12 is larger than max_position_embeddings 8\n");
  mock.eod_mask_loss = true;
  EXPECT_NE(messages_of(bert_task().check(both_sides, mock)).find("a row of task bert is of one"), std::string::npos);
  mock.eod_mask_loss = false;
  const std::string no_length = messages_of(T5Task({.task = TaskKind::kT5}, sentence_setup()).check(causal, mock));
  EXPECT_NE(no_length.find("task t5 needs decoder_seq_length"), std::string::npos) << no_length;
}

}  // namespace
}  // namespace megalith
