// Placements: boxes, flat ranges, sliced and transposed pieces, padding.
#include "nn/placement.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t extent : shape) result *= extent;
  return result;
}

// The flat indices of a box, in row-major order.
std::vector<int64_t> flat_indices(const Box& box, const std::vector<int64_t>& shape) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < box.num_elements(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      flat += (box.offset[d] + rest % box.extent[d]) * stride;
      rest /= box.extent[d];
      stride *= shape[d];
    }
    indices.push_back(flat);
  }
  return indices;
}

TEST(Box, IntersectionIsTheCommonPart) {
  const Box a{{2, 0}, {5, 4}}, b{{4, 3}, {9, 9}};
  EXPECT_EQ(intersect(a, b), (Box{{4, 3}, {3, 1}}));
  EXPECT_TRUE(intersect(a, Box{{7, 0}, {1, 4}}).is_empty());
  EXPECT_EQ(intersect(a, a), a);
}

TEST(FlatRangeBoxes, CoverEveryRangeExactlyAndInOrder) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {1}, {7}, {3, 5}, {1, 4}, {4, 1}, {2, 3, 4}, {3, 1, 2, 2}}) {
    for (int64_t begin = 0; begin <= product(shape); ++begin) {
      for (int64_t end = begin; end <= product(shape); ++end) {
        const std::vector<Box> boxes = flat_range_boxes(shape, begin, end);
        std::vector<int64_t> covered;
        for (const Box& box : boxes) {
          const auto indices = flat_indices(box, shape);
          covered.insert(covered.end(), indices.begin(), indices.end());
        }
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        ASSERT_EQ(covered, expected) << "range " << begin << ".." << end << " of " << shape.size() << " dims";
        ASSERT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - 1));
      }
    }
  }
}

TEST(FlatRangeBoxes, RefuseARangeOutsideTheTensor) { EXPECT_THROW(flat_range_boxes({2, 3}, 4, 7), InternalError); }

TEST(Piece, RestrictFollowsTheLocalBoxInTheCanonicalTensor) {
  const Piece piece{.name = "w", .shape = {10, 6}, .canonical = {{4, 1}, {3, 5}}, .local = {{20, 0}, {3, 5}}};
  const Piece part = restrict(piece, Box{{21, 2}, {9, 2}});
  EXPECT_EQ(part.local, (Box{{21, 2}, {2, 2}}));
  EXPECT_EQ(part.canonical, (Box{{5, 3}, {2, 2}}));
  EXPECT_TRUE(restrict(piece, Box{{0, 0}, {20, 5}}).local.is_empty());
}

TEST(Piece, RestrictOfATransposedPieceSwapsTheDims) {
  // File (in 6, out 10); local (out, in) holds outs 4…6 and ins 1…5.
  const Piece piece{
      .name = "w", .shape = {6, 10}, .canonical = {{1, 4}, {5, 3}}, .local = {{0, 0}, {3, 5}}, .is_transposed = true};
  const Piece part = restrict(piece, Box{{1, 3}, {1, 2}});
  EXPECT_EQ(part.local, (Box{{1, 3}, {1, 2}}));
  EXPECT_EQ(part.canonical, (Box{{4, 5}, {2, 1}}));
}

TEST(Piece, RestrictOfTransposedStacksKeepsTheFirstDim) {
  // File (experts 5, in 6, out 10); local (experts, out, in) holds experts 2…3, outs 4…6 and ins 1…5.
  const Piece piece{.name = "w",
                    .shape = {5, 6, 10},
                    .canonical = {{2, 1, 4}, {2, 5, 3}},
                    .local = {{0, 0, 0}, {2, 3, 5}},
                    .is_transposed = true};
  const Piece part = restrict(piece, Box{{1, 1, 3}, {1, 1, 2}});
  EXPECT_EQ(part.local, (Box{{1, 1, 3}, {1, 1, 2}}));
  EXPECT_EQ(part.canonical, (Box{{3, 4, 5}, {1, 2, 1}}));
  Placement placement{.local_shape = {2, 3, 5}};
  placement.pieces.push_back(piece);
  check_placement(placement);
  placement.pieces[0].local.extent = {2, 5, 3};
  EXPECT_THROW(check_placement(placement), InternalError);
}

TEST(Placement, PaddingIsWhatNoPieceHolds) {
  Placement placement;
  placement.local_shape = {8, 3};
  placement.pieces.push_back({.name = "a", .shape = {2, 3}, .canonical = {{0, 0}, {2, 3}}, .local = {{1, 0}, {2, 3}}});
  placement.pieces.push_back({.name = "b", .shape = {3, 2}, .canonical = {{0, 0}, {3, 2}}, .local = {{4, 1}, {3, 2}}});
  check_placement(placement);
  std::vector<int> holders(24, 0);
  for (const Box& box : padding_boxes(placement)) {
    for (const int64_t i : flat_indices(box, placement.local_shape)) ++holders[static_cast<size_t>(i)];
  }
  for (const Piece& piece : placement.pieces) {
    for (const int64_t i : flat_indices(piece.local, placement.local_shape)) ++holders[static_cast<size_t>(i)];
  }
  EXPECT_EQ(holders, std::vector<int>(24, 1));  // each element once: in a piece or in a padding box
  EXPECT_EQ(placement.num_local_elements(), 24);
  EXPECT_EQ(placement.num_canonical_elements(), 12);
  EXPECT_TRUE(padding_boxes(Placement::whole("w", {3, 4})).empty());
}

TEST(Placement, BrokenOnesAreRefused) {
  const auto with = [](Piece first, Piece second) {
    Placement placement;
    placement.local_shape = {4, 3};
    placement.pieces = {std::move(first), std::move(second)};
    return placement;
  };
  const Piece good{.name = "w", .shape = {4, 3}, .canonical = {{0, 0}, {2, 3}}, .local = {{0, 0}, {2, 3}}};
  Piece after = good;
  after.canonical.offset[0] = after.local.offset[0] = 2;
  EXPECT_NO_THROW(check_placement(with(good, after)));

  Piece overlapping = after;
  overlapping.local.offset[0] = 1;
  EXPECT_THROW(check_placement(with(good, overlapping)), InternalError);
  Piece outside = after;
  outside.canonical.offset[0] = 3;
  EXPECT_THROW(check_placement(with(good, outside)), InternalError);
  Piece misshapen = after;
  misshapen.local.extent[1] = 2;
  EXPECT_THROW(check_placement(with(good, misshapen)), InternalError);
}

}  // namespace
}  // namespace megalith
