// A difference of one bit on one rank is found, named, and known to all.
#include "checkpoint/replica_check.h"

#include <gtest/gtest.h>

#include <mutex>

#include "comm/thread_world.h"
#include "nn/parameter.h"

namespace megalith {
namespace {

// Two weights that are replicas over dp, of which the second is one over tp too; spoil(rank, tensors) may change some.
using Spoil = std::function<void(int, std::vector<CheckpointTensor>&)>;
std::vector<std::string> findings(const Spoil& spoil) {
  std::vector<std::string> texts(4);
  ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
    Placement slice = Placement::whole("mlp.weight", {4, 3}), norm = Placement::whole("norm.weight", {5});
    slice.pieces[0].canonical = slice.pieces[0].local = {{0, 0}, {2, 3}};
    slice.pieces[0].canonical.offset[0] = 2 * groups.tp->rank();
    slice.local_shape = {2, 3};
    slice.replica_axes = {Axis::kDp, Axis::kCp};
    norm.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
    std::vector<CheckpointTensor> tensors = {
        {.key = "model",
         .placement = &slice,
         .local = at::arange(6, at::kFloat).view({2, 3}) + 6 * groups.tp->rank(),
         .replica_axes = slice.replica_axes},
        {.key = "exp_avg", .placement = &norm, .local = at::ones({5}), .replica_axes = norm.replica_axes}};
    spoil(groups.rank, tensors);
    const auto found = find_replica_difference(tensors, groups);
    texts[static_cast<size_t>(groups.rank)] = found ? found->text() : "";
  });
  return texts;
}

TEST(ReplicaCheck, EqualReplicasAndDifferentSlicesAreFine) {
  EXPECT_EQ(findings([](int, auto&) {}), std::vector<std::string>(4));
}

TEST(ReplicaCheck, OneElementOnOneRankIsNamedToAll) {
  const auto texts = findings([](int rank, auto& tensors) {
    if (rank == 3) tensors[0].local[1][2] += 1e-6f * 11;
  });
  EXPECT_EQ(texts, std::vector<std::string>(4, "model mlp.weight differs between rank 1 and rank 3 (dp)"));
}

TEST(ReplicaCheck, AReplicaOverTensorRanksIsComparedToo) {
  const auto texts = findings([](int rank, auto& tensors) {
    if (rank % 2 == 1) tensors[1].local[0] = 2;  // the same on both data-parallel ranks
  });
  EXPECT_EQ(texts, std::vector<std::string>(4, "exp_avg norm.weight differs between rank 0 and rank 1 (tp)"));
}

TEST(ReplicaCheck, TheFirstTensorIsNamedWhenSeveralDiffer) {
  const auto texts = findings([](int rank, auto& tensors) {
    if (rank == 1) tensors[1].local[0] = 2;
    if (rank == 2) tensors[0].local[0][0] = 9;
  });
  EXPECT_EQ(texts, std::vector<std::string>(4, "model mlp.weight differs between rank 0 and rank 2 (dp)"));
}

}  // namespace
}  // namespace megalith
