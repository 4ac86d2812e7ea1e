// A rank's part of a batch.
#include "data/context_shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/sequence_shard.h"
#include "comm/thread_world.h"
#include "core/error.h"

namespace megalith {
namespace {

Batch whole_batch() {
  const at::Tensor numbers = at::arange(2 * 8, at::kLong).view({2, 8});
  return {.tokens = numbers,
          .labels = numbers + 100,
          .loss_weights = (numbers + 200).to(at::kFloat),
          .position_ids = numbers + 300,
          .document_ids = (numbers + 400).to(at::kInt),
          .sample_index = at::tensor({int64_t{5}, int64_t{6}}, at::kLong)};
}

TEST(ContextShard, CutsEveryTensorOfTheSequence) {
  const Batch whole = whole_batch(), part = shard_batch(whole, 2, 1);
  const at::Tensor index = at::tensor({2, 3, 4, 5}, at::kLong);
  EXPECT_TRUE(at::equal(part.tokens, whole.tokens.index_select(1, index)));
  EXPECT_TRUE(at::equal(part.labels, whole.labels.index_select(1, index)));
  EXPECT_TRUE(at::equal(part.loss_weights, whole.loss_weights.index_select(1, index)));
  EXPECT_TRUE(at::equal(part.position_ids, whole.position_ids.index_select(1, index)));
  EXPECT_TRUE(at::equal(part.document_ids, whole.document_ids.index_select(1, index)));
  EXPECT_TRUE(at::equal(part.sample_index, whole.sample_index));
  EXPECT_TRUE(at::equal(part.row_index, index));
  EXPECT_TRUE(at::equal(part.row_document_ids, whole.document_ids));
  EXPECT_EQ(part.row_length, 8);
}

TEST(ContextShard, OneRankHasTheWhole) {
  const Batch part = shard_batch(whole_batch(), 1, 0);
  EXPECT_EQ(part.row_length, 0);
  EXPECT_FALSE(part.row_index.defined());
}

TEST(ContextShard, PositionsAreCountedOverTheRow) {
  Batch whole = whole_batch();
  whole.position_ids = at::Tensor();
  whole.document_ids = at::Tensor();
  const Batch part = shard_batch(whole, 2, 0);
  EXPECT_TRUE(at::equal(part.position_ids[1], at::tensor({0, 1, 6, 7}, at::kLong)));
  EXPECT_FALSE(part.row_document_ids.defined());
}

TEST(ContextShard, RefusesWhatCannotBeCut) {
  EXPECT_THROW(shard_batch(whole_batch(), 3, 0), InternalError);
  EXPECT_THROW(shard_batch(shard_batch(whole_batch(), 2, 0), 2, 0), InternalError);
}

TEST(ContextShard, PartsAreJoined) {
  const at::Tensor whole = at::arange(2 * 12, at::kFloat).view({2, 12});
  ThreadWorld(3).run(Mesh({.cp = 3}), [&](Groups& groups) {
    EXPECT_TRUE(at::equal(joined_tokens(zigzag_shard(whole, 1, 3, groups.rank), *groups.cp), whole));
  });
}

}  // namespace
}  // namespace megalith
