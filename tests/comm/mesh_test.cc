// Rank arithmetic: Megatron's example groups, and what must hold for every mesh.
#include "comm/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "config/option.h"

namespace megalith {
namespace {

using Ranks = std::vector<int>;
using RankGroups = std::vector<Ranks>;

// Every mesh of small sizes, both rank orders, with splits where they divide.
std::vector<Mesh::Sizes> small_meshes() {
  std::vector<Mesh::Sizes> all;
  for (const int tp : {1, 2, 3}) {
    for (const int cp : {1, 2, 4}) {
      for (const int dp : {1, 2, 3, 4}) {
        for (const int pp : {1, 2, 3}) {
          const int stage = tp * cp * dp;
          for (const int etp : {1, 2}) {
            for (const int ep : {1, 2, 3}) {
              if (stage % (etp * ep) != 0) continue;
              const int edp = stage / (etp * ep);
              for (const int replicate : {1, 2}) {
                if (dp % replicate != 0 || edp % replicate != 0) continue;
                for (const int ulysses : {1, 2}) {
                  if (cp % ulysses != 0) continue;
                  all.push_back({tp, cp, dp, pp, etp, ep, replicate, ulysses, false});
                  if (edp == dp) all.push_back({tp, cp, dp, pp, etp, ep, replicate, ulysses, true});
                }
              }
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(Mesh, GivesMegatronsExampleGroups) {
  const Mesh mesh({.tp = 2, .dp = 2, .pp = 4});
  ASSERT_EQ(mesh.world_size(), 16);
  EXPECT_EQ(mesh.groups_of(Axis::kTp),
            (RankGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(mesh.groups_of(Axis::kDp),
            (RankGroups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(mesh.groups_of(Axis::kPp), (RankGroups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(mesh.embedding_ranks(5), Ranks());
  EXPECT_EQ(mesh.embedding_ranks(13), (Ranks{1, 13}));
}

TEST(Mesh, PutsPipelineBeforeDataWhenAsked) {
  const Mesh mesh({.tp = 2, .dp = 2, .pp = 4, .etp = 2, .pp_before_dp = true});
  EXPECT_EQ(mesh.groups_of(Axis::kPp), (RankGroups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(mesh.ranks_of(Axis::kDp, 3), (Ranks{3, 11}));
  EXPECT_EQ(mesh.ranks_of(Axis::kEdp, 3), (Ranks{3, 11}));
}

TEST(Mesh, FoldsTensorAndContextRanksIntoExperts) {
  // 8 ranks a stage seen as tp 2 × cp 2 × dp 2 and as etp 1 × ep 4 × edp 2.
  const Mesh mesh({.tp = 2, .cp = 2, .dp = 2, .pp = 2, .etp = 1, .ep = 4});
  EXPECT_EQ(mesh.ranks_of(Axis::kEp, 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(mesh.ranks_of(Axis::kEdp, 5), (Ranks{1, 5}));
  EXPECT_EQ(mesh.ranks_of(Axis::kCp, 5), (Ranks{5, 7}));
  EXPECT_EQ(mesh.ranks_of({Axis::kDp, Axis::kCp}, 5), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(mesh.ranks_of({Axis::kEtp, Axis::kEp, Axis::kPp}, 5), (Ranks{4, 5, 6, 7, 12, 13, 14, 15}));
}

TEST(Mesh, SplitsAxesIntoANearAndAFarHalf) {
  const Mesh mesh({.tp = 2, .cp = 4, .dp = 4, .ep = 2, .dp_replicate = 2, .cp_ulysses = 2});
  EXPECT_EQ(mesh.ranks_of(Axis::kCpUlysses, 0), (Ranks{0, 2}));
  EXPECT_EQ(mesh.ranks_of(Axis::kCpRing, 0), (Ranks{0, 4}));
  EXPECT_EQ(mesh.ranks_of(Axis::kDpShard, 0), (Ranks{0, 8}));
  EXPECT_EQ(mesh.ranks_of(Axis::kDpReplicate, 0), (Ranks{0, 16}));
  EXPECT_EQ(mesh.size(Axis::kEdpShard), 8);
  EXPECT_EQ(mesh.ranks_of(Axis::kEdpReplicate, 0), (Ranks{0, 16}));
}

TEST(Mesh, EveryAxisPartitionsTheWorld) {
  for (const Mesh::Sizes& sizes : small_meshes()) {
    const Mesh mesh(sizes);
    for (int a = 0; a < kNumAxes; ++a) {
      const Axis axis = static_cast<Axis>(a);
      std::set<int> seen;
      for (const Ranks& ranks : mesh.groups_of(axis)) {
        ASSERT_EQ(static_cast<int>(ranks.size()), mesh.size(axis)) << name_of(axis);
        ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
        for (size_t i = 0; i < ranks.size(); ++i) {
          ASSERT_TRUE(seen.insert(ranks[i]).second) << name_of(axis) << " names rank " << ranks[i] << " twice";
          ASSERT_EQ(mesh.coordinate(axis, ranks[i]), static_cast<int>(i)) << name_of(axis);
          ASSERT_EQ(mesh.ranks_of(axis, ranks[i]), ranks) << name_of(axis);
        }
      }
      ASSERT_EQ(static_cast<int>(seen.size()), mesh.world_size()) << name_of(axis);
    }
  }
}

TEST(Mesh, CoordinatesNameTheRankInBothViews) {
  for (const Mesh::Sizes& sizes : small_meshes()) {
    const Mesh mesh(sizes);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const auto at = [&](Axis axis) { return mesh.coordinate(axis, rank); };
      ASSERT_EQ(mesh.rank_at(at(Axis::kTp), at(Axis::kCp), at(Axis::kDp), at(Axis::kPp)), rank);
      ASSERT_EQ(mesh.expert_rank_at(at(Axis::kEtp), at(Axis::kEp), at(Axis::kEdp), at(Axis::kPp)), rank);
      ASSERT_EQ(at(Axis::kDpShard) + mesh.size(Axis::kDpShard) * at(Axis::kDpReplicate), at(Axis::kDp));
      ASSERT_EQ(at(Axis::kEdpShard) + mesh.size(Axis::kEdpShard) * at(Axis::kEdpReplicate), at(Axis::kEdp));
      ASSERT_EQ(at(Axis::kCpUlysses) + mesh.size(Axis::kCpUlysses) * at(Axis::kCpRing), at(Axis::kCp));
    }
  }
}

// The definition, tried on every pair of ranks: together exactly when all other axes of the view agree.
TEST(Mesh, GroupsVaryInTheirAxesAlone) {
  constexpr Axis kDense[] = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
  constexpr Axis kExpert[] = {Axis::kEtp, Axis::kEp, Axis::kEdp, Axis::kPp};
  const auto check = [](const Mesh& mesh, const Axis(&view)[4]) {
    for (unsigned mask = 0; mask < 16; ++mask) {
      AxisSet axes;
      for (unsigned i = 0; i < 4; ++i) {
        if (mask >> i & 1u) axes.insert(view[i]);
      }
      for (int rank = 0; rank < mesh.world_size(); rank += 3) {
        Ranks expected;
        for (int other = 0; other < mesh.world_size(); ++other) {
          bool together = true;
          for (const Axis axis : view) {
            together = together && (axes.contains(axis) || mesh.coordinate(axis, rank) == mesh.coordinate(axis, other));
          }
          if (together) expected.push_back(other);
        }
        ASSERT_EQ(mesh.ranks_of(axes, rank), expected) << axes.text();
      }
    }
  };
  for (const Mesh::Sizes& sizes : small_meshes()) {
    if (sizes.dp_replicate > 1 || sizes.cp_ulysses > 1) continue;
    check(Mesh(sizes), kDense);
    check(Mesh(sizes), kExpert);
  }
}

TEST(Mesh, RefusesSetsThatMakeNoSense) {
  const Mesh mesh({.tp = 2, .ep = 2});
  EXPECT_THROW((void)mesh.ranks_of({Axis::kTp, Axis::kEp}, 0), InternalError);
  EXPECT_THROW((void)mesh.ranks_of({Axis::kDp, Axis::kDpShard}, 0), InternalError);
  EXPECT_THROW((void)mesh.coordinate(Axis::kTp, 2), InternalError);
  EXPECT_THROW(Mesh({.tp = 3, .ep = 2}), InternalError);
}

TEST(Mesh, DescribesARankByTheAxesThatMatter) {
  const Mesh mesh({.tp = 2, .dp = 2, .pp = 2});
  EXPECT_EQ(mesh.describe(3), "rank 3 dp1 tp1 pp0");
  EXPECT_EQ(Mesh::single().describe(0), "rank 0");
  EXPECT_EQ((AxisSet{Axis::kPp, Axis::kTp}).text(), "tp_pp");
}

TEST(ParallelSizes, AcceptWhatFits) {
  EXPECT_TRUE(check_parallel_sizes({}, 1).empty());
  EXPECT_TRUE(check_parallel_sizes({.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 3}, 12).empty());
  const ParallelOptions options{.tensor_model_parallel_size = 4,
                                .pipeline_model_parallel_size = 2,
                                .expert_model_parallel_size = 8,
                                .expert_tensor_parallel_size = 1};
  ASSERT_TRUE(check_parallel_sizes(options, 32).empty());
  const Mesh mesh = Mesh::from_options(options, 32);
  EXPECT_EQ(mesh.size(Axis::kDp), 4);
  EXPECT_EQ(mesh.size(Axis::kEdp), 2);
}

TEST(ParallelSizes, AreOptionsByMegatronsNames) {
  ParallelOptions options;
  const OptionSet set(options);
  for (const char* name : {"tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
                           "expert-model-parallel-size", "expert-tensor-parallel-size", "use-tp-pp-dp-mapping"}) {
    EXPECT_NE(set.find(name), nullptr) << name;
  }
  set.find("expert_tensor_parallel_size")->set("2", {.layer = OptionLayer::kCommandLine, .where = "command line"});
  EXPECT_EQ(options.expert_tensor_parallel_size, 2);
  EXPECT_THROW(set.find("context_parallel_size")->set("0", {}), UserError);
}

TEST(ParallelSizes, SayWhichNumbersDoNotFit) {
  const auto errors = check_parallel_sizes({.tensor_model_parallel_size = 4, .pipeline_model_parallel_size = 2}, 12);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(
      errors[0].message(),
      "tensor_model_parallel_size 4 × context_parallel_size 1 × pipeline_model_parallel_size 2 = 8 does not divide "
      "the 12 rank(s) started");
  EXPECT_EQ(errors[0].remedy(), "start 8 ranks or another multiple of 8, or make the parallel sizes smaller");
}

TEST(ParallelSizes, AllThatFailAreReported) {
  const auto errors = check_parallel_sizes({.tensor_model_parallel_size = 4, .expert_model_parallel_size = 2}, 6);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NE(errors[1].message().find("expert_tensor_parallel_size 4 (unset, so tensor_model_parallel_size)"),
            std::string::npos);
}

TEST(ParallelSizes, ExpertRanksMustFitAlone) {
  const auto errors = check_parallel_sizes({.expert_model_parallel_size = 8}, 4);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].message().find("expert_model_parallel_size 8"), std::string::npos);
  EXPECT_EQ(errors[0].remedy(), "start 8 ranks or another multiple of 8, or make the expert sizes smaller");
}

TEST(ParallelSizes, TwoPipelinesThatDifferAreRefused) {
  ParallelOptions options{
      .pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2, .use_tp_pp_dp_mapping = true};
  const auto errors = check_parallel_sizes(options, 8);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].message().find("they are 4 "), std::string::npos) << errors[0].message();
  EXPECT_NE(errors[0].message().find("and 2 "), std::string::npos) << errors[0].message();
  options.use_tp_pp_dp_mapping = false;
  EXPECT_TRUE(check_parallel_sizes(options, 8).empty());
}

}  // namespace
}  // namespace megalith
