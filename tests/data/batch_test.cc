// Named tensors: rows, a rank's part, copies.
#include "data/batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/sequence_shard.h"
#include "comm/thread_world.h"
#include "core/error.h"

namespace megalith {
namespace {

constexpr std::string_view kTokenFields[] = {field::kTokens, field::kLabels, field::kLossWeights, field::kPositionIds,
                                             field::kDocumentIds};

// Two rows of eight tokens.
Batch whole_batch() {
  const at::Tensor numbers = at::arange(2 * 8, at::kLong).view({2, 8});
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, numbers));
  batch.set(BatchField::of_tokens(field::kLabels, numbers + 100));
  batch.set(BatchField::of_tokens(field::kLossWeights, (numbers + 200).to(at::kFloat)));
  batch.set(BatchField::of_tokens(field::kPositionIds, numbers + 300));
  BatchField documents = BatchField::of_tokens(field::kDocumentIds, (numbers + 400).to(at::kInt));
  documents.keeps_whole = true;
  batch.set(std::move(documents));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::tensor({int64_t{5}, int64_t{6}}, at::kLong)));
  return batch;
}

TEST(Batch, FieldsAreFoundByName) {
  Batch batch = whole_batch();
  EXPECT_EQ(batch.num_rows(), 2);
  EXPECT_EQ(batch.length(field::kTokens), 8);
  EXPECT_TRUE(batch.has(field::kLabels));
  EXPECT_FALSE(batch.has("images"));
  EXPECT_FALSE(batch.find("images").defined());
  try {
    batch.at("images");
    ADD_FAILURE() << "no error";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("no field 'images'; it has tokens, labels"), std::string::npos)
        << error.what();
  }
  batch.set(field::kLabels, at::zeros({2, 8}, at::kLong));
  EXPECT_EQ(batch.at(field::kLabels).sum().item<int64_t>(), 0);
  EXPECT_EQ(batch.fields().size(), 6u);
  EXPECT_THROW(batch.set("images", at::zeros({2})), InternalError);
  EXPECT_THROW(batch.length(field::kSampleIndex), InternalError);
  EXPECT_THROW(Batch().num_rows(), InternalError);
}

TEST(Batch, RowsAreCopiesAndWhatHasNoRowsComesWhole) {
  Batch batch = whole_batch();
  batch.set({.name = "timesteps", .tensor = at::arange(4), .row_dim = {}, .sequence_dim = {}});
  batch.set({.name = "noise", .tensor = at::arange(12).view({3, 2, 2}), .row_dim = 1, .sequence_dim = {}});
  const Batch second = batch.rows(1, 1);
  EXPECT_EQ(second.num_rows(), 1);
  for (const std::string_view name : kTokenFields) {
    EXPECT_TRUE(at::equal(second.at(name), batch.at(name).narrow(0, 1, 1))) << name;
  }
  EXPECT_EQ(second.at(field::kSampleIndex).item<int64_t>(), 6);
  EXPECT_TRUE(at::equal(second.at("noise"), batch.at("noise").narrow(1, 1, 1)));
  EXPECT_TRUE(at::equal(second.at("timesteps"), batch.at("timesteps")));
  second.at(field::kTokens).zero_();
  EXPECT_EQ(batch.at(field::kTokens)[1][0].item<int64_t>(), 8);
}

TEST(Batch, APartCutsEveryTensorOfTheSequence) {
  const Batch whole = whole_batch(), part = whole.part(2, 1);
  const at::Tensor index = at::tensor({2, 3, 4, 5}, at::kLong);
  for (const std::string_view name : kTokenFields) {
    EXPECT_TRUE(at::equal(part.at(name), whole.at(name).index_select(1, index))) << name;
  }
  EXPECT_TRUE(at::equal(part.at(field::kSampleIndex), whole.at(field::kSampleIndex)));
  EXPECT_TRUE(at::equal(part.row_index(field::kTokens), index));
  EXPECT_TRUE(at::equal(part.whole(field::kDocumentIds), whole.at(field::kDocumentIds)));
  EXPECT_THROW(part.whole(field::kTokens), InternalError);
  EXPECT_EQ(part.length(field::kTokens), 4);
  EXPECT_EQ(part.row_length(field::kTokens), 8);
  EXPECT_TRUE(part.is_part());
}

// An encoder's and a decoder's, and an image, which no rank cuts.
TEST(Batch, APartCutsEachSequenceByItsOwnLength) {
  Batch batch;
  batch.set(BatchField::of_tokens("encoder_tokens", at::arange(12).view({1, 12})));
  batch.set(BatchField::of_tokens("decoder_tokens", at::arange(4).view({1, 4})));
  batch.set(BatchField::of_rows("image", at::arange(48).view({1, 3, 4, 4})));
  const Batch part = batch.part(2, 0);
  EXPECT_TRUE(at::equal(part.at("encoder_tokens")[0], at::tensor({0, 1, 2, 9, 10, 11}, at::kLong)));
  EXPECT_TRUE(at::equal(part.at("decoder_tokens")[0], at::tensor({0, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(part.row_index("decoder_tokens"), at::tensor({0, 3}, at::kLong)));
  EXPECT_EQ(part.row_length("encoder_tokens"), 12);
  EXPECT_TRUE(at::equal(part.at("image"), batch.at("image")));
}

TEST(Batch, OneRankHasTheWhole) {
  const Batch part = whole_batch().part(1, 0);
  EXPECT_FALSE(part.is_part());
  EXPECT_EQ(part.row_length(field::kTokens), 8);
  EXPECT_TRUE(at::equal(part.row_index(field::kTokens), at::arange(8)));
  EXPECT_TRUE(at::equal(part.whole(field::kDocumentIds), part.at(field::kDocumentIds)));
}

TEST(Batch, RefusesToCutWhatCannotBeCut) {
  EXPECT_THROW(whole_batch().part(3, 0), InternalError);
  EXPECT_THROW(whole_batch().part(2, 0).part(2, 0), InternalError);
}

TEST(Batch, OnlyNamedFieldsTravelAndAPartStaysOne) {
  constexpr std::string_view kNames[] = {field::kTokens, field::kDocumentIds, "images"};
  const Batch part = whole_batch().part(2, 1), copy = part.to(at::kCPU, kNames);
  EXPECT_EQ(copy.fields().size(), 2u);
  EXPECT_TRUE(at::equal(copy.at(field::kTokens), part.at(field::kTokens)));
  EXPECT_TRUE(at::equal(copy.whole(field::kDocumentIds), part.whole(field::kDocumentIds)));
  EXPECT_EQ(copy.row_length(field::kTokens), 8);
}

TEST(Batch, PartsAreJoined) {
  const at::Tensor whole = at::arange(2 * 12, at::kFloat).view({2, 12});
  ThreadWorld(3).run(Mesh({.cp = 3}), [&](Groups& groups) {
    EXPECT_TRUE(at::equal(joined_tokens(zigzag_shard(whole, 1, 3, groups.rank), *groups.cp), whole));
  });
}

}  // namespace
}  // namespace megalith
