// Places of rows, columns and blocks of canonical matrices in a state, for every way in which a rank holds them.
#include "optim/state_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "optim/piece_views.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

Parameter parameter(const Placement& placement, ParameterRole role = ParameterRole::kMatrix) {
  return {"p", placement, ParameterOptions{.dtype = at::kDouble, .role = role}};
}

// gate|up, of which this is the second of two slices.
Placement gate_up() {
  Placement placement{.local_shape = {5, 3}, .replica_axes = {Axis::kDp}};
  placement.pieces.push_back({"gate", {4, 3}, {{2, 0}, {2, 3}}, {{0, 0}, {2, 3}}});
  placement.pieces.push_back({"up", {6, 3}, {{3, 0}, {3, 3}}, {{2, 0}, {3, 3}}});
  return placement;
}

TEST(StateLayout, HasAllRowsAndColumnsOfASlice) {
  const Parameter p = parameter(gate_up());
  const StateLayout rows(p, StateShape::kRows), columns(p, StateShape::kColumns), matrices(p, StateShape::kMatrices);
  EXPECT_EQ(rows.placement().local_shape, (std::vector<int64_t>{10}));
  EXPECT_EQ(columns.placement().local_shape, (std::vector<int64_t>{6}));
  EXPECT_EQ(matrices.placement().local_shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(rows.placement().pieces[1].name, "up");
  EXPECT_EQ(rows.placement().pieces[1].canonical, Box::whole({6}));
  EXPECT_EQ(rows.placement().pieces[1].local, (Box{{4}, {6}}));
  EXPECT_EQ(rows.placement().replica_axes, (AxisSet{Axis::kDp, Axis::kTp}));

  const at::Tensor of_rows = at::arange(10, at::kDouble), of_columns = at::arange(6, at::kDouble);
  const Piece& up = p.placement().pieces[1];
  EXPECT_TRUE(at::equal(rows.of_piece(of_rows, up), at::tensor({7.0, 8.0, 9.0}).to(at::kDouble).view({3, 1})));
  EXPECT_TRUE(at::equal(columns.of_piece(of_columns, up), at::tensor({3.0, 4.0, 5.0}).to(at::kDouble).view({1, 3})));
  EXPECT_EQ(matrices.of_piece(of_rows.narrow(0, 0, 2), up).sizes(), (at::IntArrayRef{1, 1}));
}

// Means of whole matrices come from two slices, one of them in runs that begin and end within rows.
TEST(StateLayout, MeansOfSharesAddUpToThoseOfTheWhole) {
  Placement first = gate_up();
  for (Piece& piece : first.pieces) piece.canonical.offset[0] = 0;
  const at::Tensor gate = at::rand({4, 3}, at::kDouble), up = at::rand({6, 3}, at::kDouble);
  at::Tensor sums[3] = {at::zeros({10}, at::kDouble), at::zeros({6}, at::kDouble), at::zeros({2}, at::kDouble)};
  const auto add = [&](const Placement& placement, const std::optional<FlatRange>& range) {
    const Parameter p = parameter(placement);
    const int64_t half = placement.pieces[0].canonical.offset[0] == 0 ? 0 : 1;
    at::Tensor local = at::cat({gate.narrow(0, 2 * half, 2), up.narrow(0, 3 * half, 3)});
    if (range) local = local.view({-1}).narrow(0, range->begin, range->size());
    for (const PieceView& view : piece_views(placement, local, range)) {
      StateLayout(p, StateShape::kRows).add_means(sums[0], view.piece, view.tensor);
      StateLayout(p, StateShape::kColumns).add_means(sums[1], view.piece, view.tensor);
      StateLayout(p, StateShape::kMatrices).add_means(sums[2], view.piece, view.tensor);
    }
  };
  add(first, std::nullopt);
  for (const FlatRange& run : {FlatRange{0, 4}, FlatRange{4, 11}, FlatRange{11, 15}}) add(gate_up(), run);
  EXPECT_TENSOR_NEAR(sums[0], at::cat({gate.mean(1), up.mean(1)}), {.abs = 1e-15});
  EXPECT_TENSOR_NEAR(sums[1], at::cat({gate.mean(0), up.mean(0)}), {.abs = 1e-15});
  EXPECT_TENSOR_NEAR(sums[2], at::stack({gate.mean(), up.mean()}), {.abs = 1e-15});
}

// Experts 2 and 3 of four in one canonical tensor, kept transposed, its columns in two pieces: one state.
TEST(StateLayout, GivesEachExpertOfAStackItsOwn) {
  Placement placement{.local_shape = {2, 6, 5}, .replica_axes = {Axis::kEdp}, .partial_axes = {Axis::kEdp}};
  for (const int64_t part : {0, 1}) {
    placement.pieces.push_back({.name = "gate_up",
                                .shape = {4, 5, 6},
                                .canonical = {{2, 0, 3 * part}, {2, 5, 3}},
                                .local = {{0, 3 * part, 0}, {2, 3, 5}},
                                .is_transposed = true});
  }
  const Parameter p = parameter(placement);
  const StateLayout rows(p, StateShape::kRows), columns(p, StateShape::kColumns);
  EXPECT_EQ(rows.placement().local_shape, (std::vector<int64_t>{2, 5}));
  ASSERT_EQ(columns.placement().pieces.size(), 1u);
  EXPECT_EQ(columns.placement().pieces[0].shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(columns.placement().pieces[0].canonical, (Box{{2, 0}, {2, 6}}));
  EXPECT_EQ(columns.placement().replica_axes, (AxisSet{Axis::kEdp, Axis::kEtp}));

  const at::Tensor local = at::rand({2, 6, 5}, at::kDouble);
  const at::Tensor of_rows = at::zeros({2, 5}, at::kDouble), of_columns = at::zeros({2, 6}, at::kDouble);
  for (const PieceView& view : piece_views(placement, local)) {
    rows.add_means(of_rows, view.piece, view.tensor);
    columns.add_means(of_columns, view.piece, view.tensor);
  }
  EXPECT_TENSOR_NEAR(of_rows, local.mean(1), {.abs = 1e-15});
  EXPECT_TENSOR_NEAR(of_columns, local.mean(2), {.abs = 1e-15});
}

// Blocks go on from row to row of an expert, and each expert begins its own.
TEST(StateLayout, BlocksAreOfTheCanonicalMatrix) {
  Placement placement{.local_shape = {2, 7, 20}};
  placement.pieces.push_back(
      {.name = "down", .shape = {4, 7, 100}, .canonical = {{2, 0, 60}, {2, 7, 20}}, .local = Box::whole({2, 7, 20})});
  const Parameter p = parameter(placement);
  const StateLayout blocks(p, StateShape::kBlocks);
  EXPECT_EQ(blocks.placement().local_shape, (std::vector<int64_t>{2, 3}));  // 700 elements
  const at::Tensor whole = at::arange(4 * 700).view({4, 700}).remainder(700).div(kBlockSize, "floor");
  const at::Tensor of_both = whole.view({4, 7, 100}).slice(0, 2).slice(2, 60, 80) + at::arange(2).view({2, 1, 1}) * 3;
  EXPECT_TRUE(at::equal(blocks.places_of(placement.pieces[0], at::kCPU), of_both));
}

TEST(StateLayout, KnowsAVectorOnlyAsAWhole) {
  const Parameter p = parameter(Placement::whole("bias", {6}), ParameterRole::kVector);
  EXPECT_FALSE(consists_of_matrices(p));
  const StateLayout vectors(p, StateShape::kMatrices);
  const at::Tensor mean = at::zeros({1}, at::kDouble), values = at::rand({6}, at::kDouble);
  vectors.add_means(mean, p.placement().pieces[0], values);
  EXPECT_TENSOR_NEAR(mean, values.mean().view({1}), {.abs = 1e-15});
}

}  // namespace
}  // namespace megalith
