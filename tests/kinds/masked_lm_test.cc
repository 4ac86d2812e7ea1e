// Masking: which tokens, how often, and by which key; refusals of the tasks.
#include "kinds/encoder/masked_lm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinds/text/causal_lm.h"

namespace megalith {
namespace {

constexpr int64_t kVocabulary = 1000, kMask = 999, kEod = 7;

TaskSetup task_setup() {
  SpecialIds ids;
  ids.eod = kEod;
  return {.seed = 3, .vocab_size = kVocabulary, .special_ids = ids};
}

MaskedLm masked_lm(double mask_prob = 0.15) {
  return {{.task = TaskKind::kMaskedLm, .mask_prob = mask_prob, .mask_token_id = kMask}, task_setup()};
}

// Rows as a data set gives them: tokens 10, 11, … of which every 50th ends a document; labels are the next tokens.
Batch token_rows(int64_t b, int64_t s, int64_t first_sample) {
  const at::Tensor numbers = at::arange(b * (s + 1), at::kLong).view({b, s + 1});
  const at::Tensor tokens = at::where(numbers % 50 == 49, at::full({}, kEod, at::kLong), numbers % 900 + 10);
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, tokens.narrow(1, 0, s).contiguous()));
  batch.set(BatchField::of_tokens(field::kLabels, tokens.narrow(1, 1, s).contiguous()));
  batch.set(BatchField::of_tokens(field::kLossWeights, at::ones({b, s}, at::kFloat)));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::arange(first_sample, first_sample + b, at::kLong)));
  return batch;
}

// The units of a chunk with one layer, with or without the ends of the model.
std::vector<Unit> units_of(bool has_embedding, bool has_head) {
  std::vector<Unit> units = {{.kind = "layer", .name = "model.layers.0", .letter = UnitLetter::kLayer}};
  if (has_embedding) units.insert(units.begin(), {.kind = "embedding", .letter = UnitLetter::kEmbedding});
  if (has_head) units.push_back({.kind = "head", .letter = UnitLetter::kHead});
  return units;
}

double share(const at::Tensor& part, const at::Tensor& whole) {
  return part.sum().item<double>() / whole.sum().item<double>();
}

// Five standard deviations of a share p among n draws.
double five_sigma(double p, double n) { return 5 * std::sqrt(p * (1 - p) / n); }

TEST(MaskedLm, MasksTheSharesOfBert) {
  const Batch before = token_rows(40, 500, 0);
  Batch rows = before.rows(0, 40);
  masked_lm().draw(rows);
  const at::Tensor original = before.at(field::kTokens), tokens = rows.at(field::kTokens);
  EXPECT_TRUE(at::equal(rows.at(field::kLabels), original));
  const at::Tensor is_chosen = rows.at(field::kLossWeights) == 1, is_open = original != kEod;
  EXPECT_EQ((is_chosen & is_open.logical_not()).sum().item<int64_t>(), 0) << "ends of documents are never chosen";
  EXPECT_TRUE(at::equal(at::where(is_chosen, original, tokens), original)) << "what is not chosen stays";
  const double num_open = is_open.sum().item<double>(), num_chosen = is_chosen.sum().item<double>();
  EXPECT_NEAR(share(is_chosen, is_open), 0.15, five_sigma(0.15, num_open));
  const at::Tensor is_masked = is_chosen & (tokens == kMask), is_kept = is_chosen & (tokens == original);
  EXPECT_NEAR(share(is_masked, is_chosen), 0.8, five_sigma(0.8, num_chosen));
  EXPECT_NEAR(share(is_kept, is_chosen), 0.1, five_sigma(0.1, num_chosen));
  const at::Tensor drawn = tokens.masked_select(is_chosen & is_masked.logical_not() & is_kept.logical_not());
  EXPECT_GT(drawn.numel(), 200);
  EXPECT_LT(drawn.min().item<int64_t>(), 50);
  EXPECT_GT(drawn.max().item<int64_t>(), kVocabulary - 50);
}

TEST(MaskedLm, DrawsByTheRowsPlaceInTheRunAndTheSeed) {
  const MaskedLm task = masked_lm();
  const auto drawn = [&](Batch rows) {
    task.draw(rows);
    return rows;
  };
  const Batch whole = token_rows(6, 40, 100), together = drawn(whole.rows(0, 6));
  for (int64_t row = 0; row < 6; ++row) {
    const Batch one = drawn(whole.rows(row, 1)), same = together.rows(row, 1);
    for (const std::string_view name : {field::kTokens, field::kLossWeights, field::kKeyLengths}) {
      EXPECT_TRUE(at::equal(one.at(name), same.at(name))) << name << " of row " << row;
    }
  }
  const Batch later = drawn(token_rows(6, 40, 106));  // the next pass over the same rows
  EXPECT_FALSE(at::equal(later.at(field::kLossWeights), together.at(field::kLossWeights)));
  TaskSetup other = task_setup();
  other.seed = 4;
  Batch rows = whole.rows(0, 6);
  MaskedLm({.task = TaskKind::kMaskedLm, .mask_token_id = kMask}, other).draw(rows);
  EXPECT_FALSE(at::equal(rows.at(field::kLossWeights), together.at(field::kLossWeights)));
}

TEST(MaskedLm, PaddingIsNeitherChosenNorSeen) {
  Batch rows = token_rows(2, 10, 0);
  // The second row has seven tokens: the labels from the sixth on are padding.
  rows.at(field::kLossWeights)[1].narrow(0, 6, 4).zero_();
  masked_lm(/*mask_prob=*/1).draw(rows);
  EXPECT_TRUE(at::equal(rows.at(field::kKeyLengths), at::tensor({10, 7}, at::kLong)));
  EXPECT_EQ(rows.at(field::kLossWeights)[0].sum().item<double>(), 10);
  EXPECT_EQ(rows.at(field::kLossWeights)[1].sum().item<double>(), 7);
  EXPECT_EQ(rows.at(field::kLossWeights)[1].narrow(0, 7, 3).sum().item<double>(), 0);
  const MaskedLm task = masked_lm();
  EXPECT_EQ(task.count_weights(rows), std::vector<double>{17});
  const ModelInput input = task.make_input(rows, at::kCPU, units_of(true, true));
  EXPECT_TRUE(at::equal(input.context.mask.key_lengths, rows.at(field::kKeyLengths)));
}

TEST(TextTask, AStageGetsWhatItReads) {
  const CausalLm task;
  const Batch rows = token_rows(2, 8, 5);
  const auto reads = [&](bool is_first, bool is_last) {
    const ModelInput input = task.make_input(rows, at::kCPU, units_of(is_first, is_last));
    EXPECT_EQ(input.context.b, 2);
    EXPECT_EQ(input.context.s, 8);
    EXPECT_EQ(input.context.row_ids[1][3].item<int64_t>(), 6 * 8 + 3);
    EXPECT_EQ(input.labels.defined(), input.loss_weights.defined());
    return std::pair(input.tokens.defined(), input.labels.defined());
  };
  EXPECT_EQ(reads(true, true), std::pair(true, true));
  EXPECT_EQ(reads(true, false), std::pair(true, false));
  EXPECT_EQ(reads(false, false), std::pair(false, false));
  EXPECT_EQ(reads(false, true), std::pair(false, true));
}

TEST(TextTask, PositionsOfAPartAreCountedOverTheRow) {
  const Batch part = token_rows(2, 8, 0).part(2, 0);
  const ModelInput input = CausalLm().make_input(part, at::kCPU, units_of(true, true));
  EXPECT_TRUE(at::equal(input.context.position_ids[1], at::tensor({0, 1, 6, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(input.context.mask.query_positions, at::tensor({0, 1, 6, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(input.context.row_ids[1], at::tensor({8, 9, 14, 15}, at::kLong)));
  EXPECT_EQ(input.context.row_length, 8);
}

TEST(Tasks, RefuseWhatTheyCannotTrain) {
  const auto message = [](const std::function<void()>& body) -> std::string {
    try {
      body();
      return "no error";
    } catch (const UserError& error) {
      return std::string(error.message());
    }
  };
  EXPECT_EQ(message([] { MaskedLm({.task = TaskKind::kMaskedLm}, task_setup()); }),
            "task masked_lm needs a mask token, and the tokenizer has none");
  EXPECT_EQ(message([] { MaskedLm({.task = TaskKind::kMaskedLm, .mask_token_id = kVocabulary}, task_setup()); }),
            "mask_token_id is 1000, but vocab_size is 1000");
  TaskSetup with_mask = task_setup();
  with_mask.special_ids.mask = 5;
  EXPECT_EQ(message([&] { MaskedLm({.task = TaskKind::kMaskedLm}, with_mask); }), "no error");

  ModelConfig causal, both_sides;
  both_sides.causal = false;
  DataOptions masks_ends;
  masks_ends.eod_mask_loss = true;
  const MaskedLm masked = masked_lm();
  const CausalLm next;
  EXPECT_TRUE(masked.check(both_sides, {}).empty());
  EXPECT_TRUE(next.check(causal, masks_ends).empty());
  ASSERT_EQ(masked.check(causal, masks_ends).size(), 2u);
  EXPECT_EQ(masked.check(causal, {}).at(0).message(),
            "task masked_lm needs attention to both sides, and is_causal is true");
  EXPECT_EQ(next.check(both_sides, {}).at(0).message(),
            "task causal_lm with is_causal false: every token would see the one that it is to predict");
  EXPECT_EQ(masked.sample_kind(), SampleKind::kNone);
  EXPECT_EQ(next.sample_kind(), SampleKind::kText);
}

}  // namespace
}  // namespace megalith
