// Promises of every back end, checked for the single group and for ranks as threads.
#include "comm/group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "comm/fake_group.h"
#include "comm/groups.h"
#include "comm/share_text.h"
#include "comm/single_group.h"
#include "comm/thread_world.h"
#include "core/error.h"

namespace megalith {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

// The same body on a SingleGroup, and on worlds of 2, 3 and 5 threads.
class EveryGroup : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(Group&)>& body) {
    const int size = GetParam();
    if (size == 1) {
      SingleGroup group("dp");
      body(group);
    } else {
      ThreadWorld(size).run(Mesh({.dp = size}), [&](Groups& groups) { body(*groups.dp); });
    }
  }
};

TEST_P(EveryGroup, TheFirstRanksTextIsEveryones) {
  for (const std::optional<std::string>& text :
       {std::optional<std::string>(), std::optional(std::string()), std::optional(std::string("a\0b\n", 4))}) {
    run([&](Group& group) {
      EXPECT_EQ(share_text(group.is_first() ? text : std::optional(std::string("another")), group, "x"), text);
    });
  }
}

TEST_P(EveryGroup, AllReduceIsTheReductionInRankOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    run([&](Group& group) {
      // 7 elements: no multiple of a vector.
      const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor sum = random({7}, 0, dtype).to(wide), max = sum;
      for (int r = 1; r < group.size(); ++r) {
        const at::Tensor next = random({7}, static_cast<uint64_t>(r), dtype).to(wide);
        sum = sum + next;
        max = at::maximum(max, next);
      }
      const at::Tensor own = random({7}, static_cast<uint64_t>(group.rank()), dtype);
      const auto reduced = [&](ReduceOp op) {
        const at::Tensor tensor = own.clone();
        group.all_reduce(tensor, op, "x").wait();
        return tensor;
      };
      // Exact: the order is fixed, and low precision is rounded once.
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kSum), sum.to(dtype)));
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kAvg), (sum / group.size()).to(dtype)));
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kMax), max.to(dtype)));
    });
  }
  run([](Group& group) {
    const at::Tensor count = at::full({2, 3}, group.rank() + 1, at::kLong);
    group.all_reduce(count, ReduceOp::kMin, "count").wait();
    EXPECT_TRUE(at::equal(count, at::ones({2, 3}, at::kLong)));
    EXPECT_EQ(group.reduced(group.rank() + 0.5, ReduceOp::kMax, "rank"), group.size() - 0.5);
  });
}

TEST_P(EveryGroup, AllGatherPutsRanksBehindOneAnother) {
  run([](Group& group) {
    const at::Tensor in = random({2, 3}, static_cast<uint64_t>(group.rank()));
    std::vector<at::Tensor> parts;
    for (int r = 0; r < group.size(); ++r) parts.push_back(random({2, 3}, static_cast<uint64_t>(r)));
    const at::Tensor expected = at::cat(parts);
    EXPECT_TRUE(at::equal(group.gathered(in, "w"), expected));

    const at::Tensor in_place = at::zeros({2 * group.size(), 3});
    const at::Tensor own_rows = in_place.narrow(0, 2 * group.rank(), 2);
    own_rows.copy_(in);
    group.all_gather(in_place, own_rows, "w").wait();
    EXPECT_TRUE(at::equal(in_place, expected));

    // A scalar counts as one row, and no rows are fine.
    const at::Tensor ranks = group.gathered(at::scalar_tensor(group.rank(), at::kLong), "rank");
    EXPECT_TRUE(at::equal(ranks, at::arange(group.size(), at::kLong)));
    EXPECT_EQ(group.gathered(at::empty({0, 3}), "nothing").numel(), 0);
  });
}

TEST_P(EveryGroup, ReduceScatterIsOnesRowsOfTheReduction) {
  run([](Group& group) {
    at::Tensor sum = at::zeros({3 * group.size(), 2});
    for (int r = 0; r < group.size(); ++r) sum = sum + random({3 * group.size(), 2}, static_cast<uint64_t>(r));
    const at::Tensor expected = sum.narrow(0, 3 * group.rank(), 3);
    const at::Tensor in = random({3 * group.size(), 2}, static_cast<uint64_t>(group.rank()));
    EXPECT_TRUE(at::equal(group.reduce_scattered(in, ReduceOp::kSum, "g"), expected));

    const at::Tensor own_rows = in.narrow(0, 3 * group.rank(), 3);
    group.reduce_scatter(own_rows, in, ReduceOp::kSum, "g").wait();
    EXPECT_TRUE(at::equal(own_rows, expected)) << "in place";
  });
}

TEST_P(EveryGroup, AllToAllMovesUnevenRows) {
  run([](Group& group) {
    // Rank r sends (r + to) % 3 rows that hold 10 r + to.
    const auto rows = [](int from, int to) { return int64_t{(from + to) % 3}; };
    std::vector<int64_t> in_splits, out_splits;
    std::vector<at::Tensor> in, expected;
    for (int other = 0; other < group.size(); ++other) {
      in_splits.push_back(rows(group.rank(), other));
      in.push_back(at::full({in_splits.back(), 2}, 10 * group.rank() + other, at::kLong));
      out_splits.push_back(rows(other, group.rank()));
      expected.push_back(at::full({out_splits.back(), 2}, 10 * other + group.rank(), at::kLong));
    }
    const at::Tensor out = group.exchanged(at::cat(in), out_splits, in_splits, "tokens");
    EXPECT_TRUE(at::equal(out, at::cat(expected)));

    const at::Tensor even = at::arange(2 * group.size(), at::kInt) + 100 * group.rank();
    const at::Tensor swapped = group.exchanged(even, {}, {}, "even");
    for (int from = 0; from < group.size(); ++from) {
      EXPECT_EQ(swapped[2 * from + 1].item<int>(), 100 * from + 2 * group.rank() + 1);
    }
  });
}

TEST_P(EveryGroup, BroadcastTakesTheRootsTensor) {
  run([](Group& group) {
    const int root = group.size() - 1;
    const at::Tensor tensor = random({5}, static_cast<uint64_t>(group.rank()), at::kBFloat16);
    group.broadcast(tensor, root, "w").wait();
    EXPECT_TRUE(at::equal(tensor, random({5}, static_cast<uint64_t>(root), at::kBFloat16)));
  });
}

TEST_P(EveryGroup, SendsAndReceivesGoAroundARing) {
  run([](Group& group) {
    const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    const at::Tensor in = at::full({3}, group.rank(), at::kFloat), out = at::empty({3});
    const at::Tensor second_in = at::full({2}, -group.rank(), at::kLong), second_out = at::empty({2}, at::kLong);
    group
        .send_receive({Transfer::send(in, next), Transfer::send(second_in, next, 7), Transfer::receive(out, previous),
                       Transfer::receive(second_out, previous, 7)},
                      "ring")
        .wait();
    EXPECT_TRUE(at::equal(out, at::full({3}, previous, at::kFloat)));
    EXPECT_TRUE(at::equal(second_out, at::full({2}, -previous, at::kLong)));
    group.barrier("end").wait();
  });
}

TEST_P(EveryGroup, ReceivesMayBeIssuedBeforeTheSendExists) {
  run([](Group& group) {
    const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    const at::Tensor first = at::empty({2}), second = at::empty({2});
    Work receive_first = group.send_receive({Transfer::receive(first, previous)}, "first");
    Work receive_second = group.send_receive({Transfer::receive(second, previous)}, "second");
    EXPECT_TRUE(!receive_first.is_done() || group.size() > 1);
    Work send_first = group.send_receive({Transfer::send(at::full({2}, 1.0f), next)}, "first");
    Work send_second = group.send_receive({Transfer::send(at::full({2}, 2.0f), next)}, "second");
    receive_second.wait();
    receive_first.wait();
    send_first.wait();
    send_second.wait();
    EXPECT_EQ(first[1].item<float>(), 1);
    EXPECT_EQ(second[1].item<float>(), 2);
  });
}

TEST_P(EveryGroup, ArgumentsThatCannotWorkAreRefused) {
  run([](Group& group) {
    const at::Tensor x = at::zeros({4, 2}), wide = at::zeros({4 * group.size(), 2});
    EXPECT_THROW((void)group.all_reduce(x.t(), ReduceOp::kSum, "not contiguous"), InternalError);
    EXPECT_THROW((void)group.all_reduce(x.to(at::kLong), ReduceOp::kAvg, "no average"), InternalError);
    EXPECT_THROW((void)group.all_reduce(x.to(at::kBool), ReduceOp::kMax, "no numbers"), InternalError);
    EXPECT_THROW((void)group.all_gather(at::zeros({4 * group.size(), 3}), x, "rows differ"), InternalError);
    EXPECT_THROW((void)group.all_gather(wide.to(at::kHalf), x, "dtypes differ"), InternalError);
    EXPECT_THROW((void)group.reduce_scatter(x, at::zeros({4 * group.size() + 1, 2}), ReduceOp::kSum, "odd"),
                 InternalError);
    EXPECT_THROW((void)group.broadcast(x, group.size(), "no such root"), InternalError);
    std::vector<int64_t> splits(static_cast<size_t>(group.size()), 5);
    EXPECT_THROW((void)group.all_to_all(wide, at::zeros_like(wide), {}, splits, "too many rows"), InternalError);
    EXPECT_THROW((void)group.send_receive({Transfer::send(x, -1)}, "no such peer"), InternalError);
  });
}

TEST_P(EveryGroup, TheTraceSeesStartEndAndBytes) {
  run([](Group& group) {
    std::vector<std::string> events;
    group.set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
      events.push_back((phase == TracePhase::kStart ? "start " : "end ") + record.text());
    });
    Work work = group.all_reduce(at::zeros({250}), ReduceOp::kSum, "layer.weight");
    EXPECT_EQ(events, std::vector<std::string>{"start all_reduce dp layer.weight 1000 B"});
    work.wait();
    work.wait();
    EXPECT_EQ(events.back(), "end all_reduce dp layer.weight 1000 B");
    EXPECT_EQ(events.size(), 2u) << "the end is told once";
  });
}

TEST_P(EveryGroup, AutogradDoesNotSeeCollectives) {
  run([](Group& group) {
    const at::Tensor w = at::ones({2}).requires_grad_(true);
    const at::Tensor all = group.gathered(w, "w");
    EXPECT_FALSE(all.requires_grad());
    group.broadcast(w, 0, "w").wait();  // in place on a leaf
    EXPECT_EQ(w.mutable_grad().defined(), false);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, EveryGroup, testing::Values(1, 2, 3, 5),
                         [](const auto& size) { return "Of" + std::to_string(size.param); });

TEST(SingleGroup, WaitingForWhatWasNeverSentIsAnError) {
  SingleGroup group("pp");
  Work work = group.send_receive({Transfer::receive(at::empty({2}), 0)}, "x");
  EXPECT_FALSE(work.is_done());
  EXPECT_THROW(work.wait(), InternalError);
}

TEST(Groups, OfOneProcessAreAllSingle) {
  const Groups groups = Groups::single();
  for (const auto& group : groups.all()) EXPECT_EQ(group->size(), 1) << group->axis();
  EXPECT_EQ(groups.all().size(), 19u);
}

TEST(Groups, LieWhereTheMeshSays) {
  const Mesh mesh({.tp = 2, .cp = 2, .dp = 2, .pp = 3, .ep = 4, .dp_replicate = 2});
  std::vector<std::vector<std::string>> created(24);
  ThreadWorld(24).run([&](int rank, const GroupFactory& factory) {
    const Groups groups(mesh, rank, [&](std::vector<int> ranks, const std::string& axis) {
      created[static_cast<size_t>(rank)].push_back(axis);
      return factory(std::move(ranks), axis);
    });
    for (int axis = 0; axis < kNumAxes; ++axis) {
      const Axis a = static_cast<Axis>(axis);
      EXPECT_EQ(groups.of(a)->ranks(), mesh.ranks_of(a, rank)) << name_of(a);
      EXPECT_EQ(groups.of(a)->rank(), mesh.coordinate(a, rank)) << name_of(a);
      EXPECT_EQ(groups.of(a)->axis(), name_of(a));
    }
    EXPECT_EQ(groups.world->size(), 24);
    EXPECT_EQ(groups.embedding == nullptr, mesh.coordinate(Axis::kPp, rank) == 1);
    // Every group works: the sum of its ranks.
    for (const auto& group : groups.all()) {
      double expected = 0;
      for (const int member : group->ranks()) expected += member;
      EXPECT_EQ(group->reduced(rank, ReduceOp::kSum, "rank"), expected) << group->axis();
    }
  });
  for (const auto& axes : created) {
    // The middle stage has no embedding group.
    std::vector<std::string> expected = created[0];
    if (axes.size() != expected.size()) std::erase(expected, "embedding");
    EXPECT_EQ(axes, expected) << "one order of creation";
  }
}

using Ranks = std::vector<int>;

struct SharingLayout {
  std::string name;
  Mesh::Sizes sizes;
  size_t num_communicators;  // of rank 0
};

// Counted by hand: the sets of at least two ranks that rank 0 is part of, and a pipeline's second direction.
std::vector<SharingLayout> sharing_layouts() {
  return {
      {"dp 8: only the world", {.dp = 8}, 1},
      {"tp 8: only the world", {.tp = 8}, 1},
      {"pp 2: the ends are the world; backward", {.pp = 2}, 2},
      {"pp 4: the world, its ends; backward", {.pp = 4}, 3},
      {"tp 2 dp 4: world, tp, dp", {.tp = 2, .dp = 4, .etp = 2}, 3},
      {"tp 2 dp 2 pp 2: world, tp, dp, pp; backward", {.tp = 2, .dp = 2, .pp = 2, .etp = 2}, 5},
      {"dp 8 ep 4: world, ep, edp", {.dp = 8, .ep = 4}, 3},
      {"tp 2 cp 2 dp 2: world, tp, cp, dp, dp_cp, tp_cp", {.tp = 2, .cp = 2, .dp = 2, .etp = 2}, 6},
  };
}

// The two communicators of a pipeline have the same ranks: -1 marks the one for gradients.
Ranks marked(Ranks ranks, const std::string& axis) {
  if (axis == "pp_backward") ranks.insert(ranks.begin(), -1);
  return ranks;
}

// Ranks that the factory was asked for, in order, by rank.
std::vector<std::vector<Ranks>> made_as_threads(const Mesh& mesh) {
  std::vector<std::vector<Ranks>> made(static_cast<size_t>(mesh.world_size()));
  ThreadWorld(mesh.world_size()).run([&](int rank, const GroupFactory& factory) {
    const Groups groups(mesh, rank, [&](const Ranks& ranks, const std::string& axis) {
      made[static_cast<size_t>(rank)].push_back(marked(ranks, axis));
      return factory(ranks, axis);
    });
    // Every axis goes through what it shares under its own name, and counts by itself.
    for (const auto& group : groups.all()) {
      std::vector<std::string> seen;
      group->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
        if (phase == TracePhase::kStart) seen.push_back(fmt::format("{} #{}", record.axis, record.sequence));
      });
      double expected = 0;
      for (const int member : group->ranks()) expected += member;
      EXPECT_EQ(group->reduced(rank, ReduceOp::kSum, "rank"), expected) << group->axis();
      group->set_trace_hook({});
      EXPECT_EQ(seen, std::vector<std::string>{group->axis() + " #0"});
    }
  });
  return made;
}

std::vector<std::vector<Ranks>> made_in_dry_runs(const Mesh& mesh) {
  std::vector<std::vector<Ranks>> made(static_cast<size_t>(mesh.world_size()));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const GroupFactory factory = fake_group_factory(rank);
    const Groups groups(mesh, rank, [&](const Ranks& ranks, const std::string& axis) {
      made[static_cast<size_t>(rank)].push_back(marked(ranks, axis));
      return factory(ranks, axis);
    });
  }
  return made;
}

// Those of `made` that this rank is part of too.
std::vector<Ranks> shared_with(int rank, const std::vector<Ranks>& made) {
  std::vector<Ranks> shared;
  for (const Ranks& ranks : made) {
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) shared.push_back(ranks);
  }
  return shared;
}

TEST(Groups, OfOneSetOfRanksShareACommunicatorThatAllMakeInOneOrder) {
  for (const SharingLayout& layout : sharing_layouts()) {
    SCOPED_TRACE(layout.name);
    const Mesh mesh(layout.sizes);
    for (const auto& made : {made_as_threads(mesh), made_in_dry_runs(mesh)}) {
      EXPECT_EQ(made[0].size(), layout.num_communicators);
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const std::vector<Ranks>& own = made[static_cast<size_t>(rank)];
        EXPECT_EQ(std::set<Ranks>(own.begin(), own.end()).size(), own.size()) << "rank " << rank << " makes one twice";
        for (int other = 0; other < rank; ++other) {
          EXPECT_EQ(shared_with(other, own), shared_with(rank, made[static_cast<size_t>(other)]))
              << "ranks " << other << " and " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith
