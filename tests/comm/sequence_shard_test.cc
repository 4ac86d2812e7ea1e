// The zig-zag: who holds what, and the way there and back.
#include "comm/sequence_shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

std::vector<int64_t> values(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

TEST(SequenceShard, RanksHoldOneEarlyAndOneLateChunk) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(values(zigzag_indices(8, 2, 0)), (Indices{0, 1, 6, 7}));
  EXPECT_EQ(values(zigzag_indices(8, 2, 1)), (Indices{2, 3, 4, 5}));
  EXPECT_EQ(values(zigzag_indices(6, 3, 1)), (Indices{1, 4}));
  EXPECT_EQ(values(zigzag_indices(5, 1, 0)), (Indices{0, 1, 2, 3, 4}));
  EXPECT_THROW(zigzag_indices(6, 2, 0), InternalError);
}

TEST(SequenceShard, CausalWorkIsEqual) {
  for (const int size : {2, 3, 4, 8}) {
    const int64_t length = 6 * size;
    for (int rank = 0; rank < size; ++rank) {
      const int64_t pairs = zigzag_indices(length, size, rank).add(1).sum().item<int64_t>();
      EXPECT_EQ(pairs, length * (length + 1) / 2 / size);
    }
  }
}

TEST(SequenceShard, JoinsWhatItCuts) {
  const at::Tensor whole = at::arange(2 * 24 * 3, at::kLong).view({2, 24, 3});
  for (const int size : {1, 2, 3, 4}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < size; ++rank) {
      parts.push_back(zigzag_shard(whole, 1, size, rank));
      EXPECT_TRUE(at::equal(parts.back(), whole.index_select(1, zigzag_indices(24, size, rank))));
    }
    const at::Tensor stacked = at::stack(parts);
    EXPECT_TRUE(at::equal(zigzag_join(stacked), whole));
    // The input may be a view with other strides, and the output may have another dtype.
    EXPECT_TRUE(at::equal(zigzag_join(stacked.narrow(3, 1, 2)), whole.narrow(2, 1, 2)));
    const at::Tensor cut = at::empty(stacked.sizes(), at::kDouble);
    zigzag_split(whole, cut);
    EXPECT_TRUE(at::equal(cut.to(at::kLong), stacked));
  }
}

// An all-to-all among neighbours joins their parts to the zig-zag of a ring over the groups of neighbours.
TEST(SequenceShard, NeighboursJoinedAreAZigZagOfFewerRanks) {
  constexpr int kNeighbours = 3, kRing = 2;
  for (int ring = 0; ring < kRing; ++ring) {
    std::vector<at::Tensor> parts;
    for (int i = 0; i < kNeighbours; ++i) {
      parts.push_back(zigzag_indices(48, kNeighbours * kRing, i + kNeighbours * ring).unsqueeze(0));
    }
    EXPECT_TRUE(at::equal(zigzag_join(at::stack(parts)).squeeze(0), zigzag_indices(48, kRing, ring)));
  }
}

}  // namespace
}  // namespace megalith
