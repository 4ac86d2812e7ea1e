// Matrices that a local tensor is a slice of: fused, transposed, cut over rows or columns, several experts in one.
#include "optim/matrices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/linear.h"

namespace megalith {
namespace {

using Cut = SlicedMatrix::Cut;

std::vector<SlicedMatrix> matrices_of(const Parameter& parameter, const Group& tp, bool joins_qkv = false) {
  return sliced_matrices(parameter, tp.rank(), tp.size(), joins_qkv);
}

// Every rank's local tensor holds the row and the column of each element of the whole matrix: put together, the slices
// must count through it.
at::Tensor numbered_whole(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kDouble).view({rows, columns});
}

void expect_round_trip(const SlicedMatrix& matrix) {
  const at::Tensor whole = numbered_whole(matrix.rows, matrix.columns);
  const at::Tensor assembled = at::full_like(whole, -1);
  for (int slice = 0; slice < matrix.num_slices; ++slice) {
    const at::Tensor taken = matrix.take_slice(whole, slice);
    EXPECT_EQ(taken.sizes(), (std::vector<int64_t>{matrix.local_rows(), matrix.local_columns})) << matrix.name;
    matrix.put_slice(taken, slice, assembled);
  }
  EXPECT_TRUE(at::equal(assembled, whole)) << matrix.name;
}

// The slice that the placement says this rank has, against the one that the matrix takes.
void expect_slice_is_the_placements(const Parameter& parameter, const SlicedMatrix& matrix, size_t piece, int slice,
                                    size_t block = 0) {
  const Piece& p = parameter.placement().pieces[piece];
  const size_t r = p.is_transposed ? 1 : 0, c = 1 - r;
  const at::Tensor whole = numbered_whole(matrix.rows, matrix.columns);
  const at::Tensor taken = matrix.take_slice(whole, slice);
  int64_t local_row = 0;
  for (size_t b = 0; b < block; ++b) local_row += matrix.blocks[b].num_rows;
  EXPECT_EQ(taken[local_row][0].item<double>(), whole[p.canonical.offset[r]][p.canonical.offset[c]].item<double>())
      << p.name;
}

TEST(SlicedMatrices, OfAFusedColumnLayerAreItsPartsAndTheirRows) {
  for (const int tp : {1, 2, 4}) {
    ThreadWorld(tp).run(Mesh({.tp = tp, .etp = tp}), [&](Groups& groups) {
      const LayerContext context{.groups = &groups};
      const Linear qkv(context, "qkv", 6, {{"q", 16}, {"k", 8}, {"v", 8}},
                       {.role = LinearRole::kColumn, .weight_role = ParameterRole::kQkv});
      const std::vector<SlicedMatrix> split = matrices_of(qkv.weight(), *groups.tp);
      ASSERT_EQ(split.size(), 3u);
      const int64_t q = 16 / tp, kv = 8 / tp;
      EXPECT_EQ(split[0].name, "q.weight");
      EXPECT_EQ(split[0].range, (FlatRange{0, q * 6}));
      EXPECT_EQ(split[1].range, (FlatRange{q * 6, (q + kv) * 6}));
      EXPECT_EQ(split[2].range, (FlatRange{(q + kv) * 6, (q + 2 * kv) * 6}));
      EXPECT_EQ(split[0].rows, 16);
      EXPECT_EQ(split[2].rows, 8);
      for (size_t i = 0; i < split.size(); ++i) {
        EXPECT_EQ(split[i].columns, 6);
        EXPECT_EQ(split[i].cut, tp == 1 ? Cut::kNone : Cut::kRows);
        EXPECT_EQ(split[i].num_slices, tp);
        expect_round_trip(split[i]);
        expect_slice_is_the_placements(qkv.weight(), split[i], i, groups.tp->rank());
      }

      const std::vector<SlicedMatrix> joined = matrices_of(qkv.weight(), *groups.tp, /*joins_qkv=*/true);
      ASSERT_EQ(joined.size(), 1u);
      EXPECT_EQ(joined[0].rows, 32);
      EXPECT_EQ(joined[0].range, (FlatRange{0, 32 * 6 / tp}));
      EXPECT_EQ(joined[0].blocks[1].row, 16);
      EXPECT_EQ(joined[0].blocks[2].row, 24);
      expect_round_trip(joined[0]);

      // Only queries, keys and values are joined.
      const Linear gate_up(context, "gate_up", 6, {{"gate", 8}, {"up", 8}}, {.role = LinearRole::kColumn});
      EXPECT_EQ(matrices_of(gate_up.weight(), *groups.tp, /*joins_qkv=*/true).size(), 2u);
    });
  }
}

TEST(SlicedMatrices, OfARowLayerAreCutByColumns) {
  ThreadWorld(2).run(Mesh({.tp = 2, .etp = 2}), [&](Groups& groups) {
    const Linear row({.groups = &groups}, "row", 10, 3, {.role = LinearRole::kRow});
    const std::vector<SlicedMatrix> found = matrices_of(row.weight(), *groups.tp);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].cut, Cut::kColumns);
    EXPECT_EQ(found[0].rows, 3);
    EXPECT_EQ(found[0].columns, 10);
    EXPECT_EQ(found[0].local_columns, 5);
    expect_round_trip(found[0]);
    expect_slice_is_the_placements(row.weight(), found[0], 0, groups.tp->rank());
  });
}

TEST(SlicedMatrices, OfAReplicatedLayerAreWholeOnEveryRank) {
  ThreadWorld(2).run(Mesh({.tp = 2, .etp = 2}), [&](Groups& groups) {
    const Linear layer({.groups = &groups}, "both", 10, 3, {});
    EXPECT_EQ(matrices_of(layer.weight(), *groups.tp).at(0).cut, Cut::kNone);
  });
}

// GPT-2 keeps (in, out): the matrices are (out, in) all the same, and q, k and v are in one canonical tensor.
TEST(SlicedMatrices, OfATransposedTensorHaveOutputsAsRows) {
  for (const int tp : {1, 2}) {
    ThreadWorld(tp).run(Mesh({.tp = tp, .etp = tp}), [&](Groups& groups) {
      const LayerContext context{.groups = &groups};
      const LinearOptions fused{.role = LinearRole::kColumn, .is_transposed = true, .weight_role = ParameterRole::kQkv};
      const Linear qkv(context, "c_attn", 6, {{"c_attn", 6, 0, 18}, {"c_attn", 6, 6, 18}, {"c_attn", 6, 12, 18}},
                       fused);
      EXPECT_EQ(qkv.weight().placement().pieces[0].shape, (std::vector<int64_t>{6, 18}));
      const std::vector<SlicedMatrix> split = matrices_of(qkv.weight(), *groups.tp);
      ASSERT_EQ(split.size(), 3u);
      for (const SlicedMatrix& one : split) {
        EXPECT_EQ(one.rows, 6);
        EXPECT_EQ(one.columns, 6);
        expect_round_trip(one);
      }
      const std::vector<SlicedMatrix> joined = matrices_of(qkv.weight(), *groups.tp, true);
      ASSERT_EQ(joined.size(), 1u);
      EXPECT_EQ(joined[0].rows, 18);
      EXPECT_EQ(joined[0].columns, 6);
      expect_round_trip(joined[0]);
      for (size_t i = 0; i < 3; ++i) {
        expect_slice_is_the_placements(qkv.weight(), joined[0], i, groups.tp->rank(), i);
      }

      const Linear down(context, "c_proj", 12, 6, {.role = LinearRole::kRow, .is_transposed = true});
      const SlicedMatrix one = matrices_of(down.weight(), *groups.tp).at(0);
      EXPECT_EQ(one.rows, 6);
      EXPECT_EQ(one.columns, 12);
      EXPECT_EQ(one.cut, tp == 1 ? Cut::kNone : Cut::kColumns);
      expect_round_trip(one);
    });
  }
}

// gpt-oss: files keep (experts, in, out); here are experts 4 and 5, on the second of two ranks that cut each of them.
TEST(SlicedMatrices, OfAStackAreItsExperts) {
  const auto stack_of = [](Box canonical, std::vector<int64_t> local_shape) {
    Placement placement{.local_shape = local_shape};
    placement.pieces.push_back({.name = "stack",
                                .shape = {8, 6, 10},
                                .canonical = std::move(canonical),
                                .local = Box::whole(local_shape),
                                .is_transposed = true});
    return Parameter("stack", placement, {.role = ParameterRole::kMatrix});
  };
  const Parameter up = stack_of({{4, 0, 5}, {2, 6, 5}}, {2, 5, 6}),
                  down = stack_of({{4, 3, 0}, {2, 3, 10}}, {2, 10, 3});
  for (const Parameter* parameter : {&up, &down}) {
    const std::vector<SlicedMatrix> experts = sliced_matrices(*parameter, 1, 2, false);
    ASSERT_EQ(experts.size(), 2u);
    EXPECT_EQ(experts[0].name, "stack[4]");
    EXPECT_EQ(experts[1].name, "stack[5]");
    EXPECT_EQ(experts[0].range, (FlatRange{0, 30}));
    EXPECT_EQ(experts[1].range, (FlatRange{30, 60}));
    for (const SlicedMatrix& expert : experts) {
      EXPECT_EQ(expert.rows, 10);
      EXPECT_EQ(expert.columns, 6);
      EXPECT_EQ(expert.cut, parameter == &up ? Cut::kRows : Cut::kColumns);
      expect_round_trip(expert);
    }
  }
}

TEST(SlicedMatrices, ATensorThatIsNotEqualSlicesIsRefused) {
  Placement odd;  // five of eight rows, on one of two ranks
  odd.local_shape = {5, 4};
  odd.pieces.push_back({"odd", {8, 4}, Box{{0, 0}, {5, 4}}, Box::whole({5, 4})});
  const Parameter uneven("odd", odd, {.role = ParameterRole::kMatrix});
  EXPECT_THROW(sliced_matrices(uneven, 0, 2, false), InternalError);
  Placement padded = Placement::whole("padded", {4, 4});
  padded.local_shape = {6, 4};
  EXPECT_THROW(sliced_matrices(Parameter("padded", padded, {}), 0, 1, false), InternalError);
  EXPECT_THROW(sliced_matrices(Parameter("vector", Placement::whole("vector", {4}), {}), 0, 1, false), InternalError);
}

TEST(SlicedMatrices, RolesSayWhatIsAMatrix) {
  const auto is_one = [](ParameterRole role) {
    return has_matrices(Parameter("w", Placement::whole("w", {4, 4}), {.role = role}));
  };
  EXPECT_TRUE(is_one(ParameterRole::kMatrix));
  EXPECT_TRUE(is_one(ParameterRole::kQkv));
  EXPECT_TRUE(is_one(ParameterRole::kRouter));
  EXPECT_FALSE(is_one(ParameterRole::kVector));
  EXPECT_FALSE(is_one(ParameterRole::kEmbedding));
  EXPECT_FALSE(is_one(ParameterRole::kHead));
}

}  // namespace
}  // namespace megalith
