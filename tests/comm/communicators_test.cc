// Order of communicators, those connected before a step, and the two directions of a pipeline.
#include "comm/communicators.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "comm/fake_group.h"
#include "core/error.h"

namespace megalith {
namespace {

// Calls seen by the communicator of an axis.
struct Seen {
  std::vector<int> ranks;
  int times_connected = 0;
  std::vector<int> sent_tags;
  int all_reduces = 0;
};
using SeenByAxis = std::map<std::string, Seen>;

class SeenGroup final : public FakeGroup {
 public:
  SeenGroup(std::vector<int> ranks, int rank, const std::string& axis, Seen& seen)
      : FakeGroup(std::move(ranks), rank, axis), seen_(seen) {}
  void connect() override { seen_.times_connected = 1; }

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    ++seen_.all_reduces;
    return FakeGroup::start_all_reduce(tensor, op, record);
  }
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    for (const Transfer& transfer : transfers) seen_.sent_tags.push_back(transfer.tag);
    return FakeGroup::start_send_receive(transfers, record);
  }

 private:
  Seen& seen_;
};

Groups groups_of_rank_0(const Mesh::Sizes& sizes, SeenByAxis& seen) {
  return Groups(Mesh(sizes), 0, [&](std::vector<int> ranks, const std::string& axis) {
    const int position = static_cast<int>(std::ranges::find(ranks, 0) - ranks.begin());
    Seen& own = seen[axis];
    EXPECT_TRUE(own.ranks.empty()) << axis << " is made twice";
    own.ranks = ranks;
    return std::make_shared<SeenGroup>(std::move(ranks), position, axis, own);
  });
}

std::vector<std::string> connected(const SeenByAxis& seen) {
  std::vector<std::string> axes;
  for (const auto& [axis, one] : seen) {
    if (one.times_connected > 0) axes.push_back(axis);
  }
  return axes;
}

TEST(Communicators, OfSeveralAxesHaveTheNameOfOneWithPriority) {
  SeenByAxis seen;
  (void)groups_of_rank_0({.tp = 8}, seen);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen.begin()->first, "tp") << "it is the world's as well";
  EXPECT_TRUE(has_priority("tp"));

  seen.clear();
  (void)groups_of_rank_0({.cp = 2, .pp = 2}, seen);
  EXPECT_TRUE(seen.contains("cp") && seen.contains("pp") && seen.contains("pp_backward"));
  EXPECT_TRUE(seen.contains("world")) << "no axis with priority has all ranks";
  for (const char* axis : {"cp", "pp", "pp_backward", "cp_ring", "cp_ulysses"}) EXPECT_TRUE(has_priority(axis)) << axis;
  for (const char* axis : {"world", "dp", "dp_cp", "ep", "embedding"}) EXPECT_FALSE(has_priority(axis)) << axis;
}

TEST(Communicators, OfTrainingAreConnectedBeforeAStep) {
  SeenByAxis seen;
  Groups groups = groups_of_rank_0({.tp = 2, .cp = 2, .dp = 2, .pp = 2, .etp = 2}, seen);
  EXPECT_EQ(connected(seen), (std::vector<std::string>{"pp", "pp_backward", "world"}));
  connect_for_training(groups, /*has_experts=*/false);
  EXPECT_EQ(connected(seen), (std::vector<std::string>{"cp", "dp_cp", "pp", "pp_backward", "tp", "world"}));
  EXPECT_FALSE(groups.tp_cp->ranks().empty());

  SeenByAxis with_experts;
  groups = groups_of_rank_0({.dp = 8, .ep = 4}, with_experts);
  connect_for_training(groups, /*has_experts=*/true);
  EXPECT_EQ(connected(with_experts), (std::vector<std::string>{"edp", "ep", "world"}));
}

TEST(Communicators, GradientsOfAPipelineTravelOverTheirOwn) {
  SeenByAxis seen;
  const Groups groups = groups_of_rank_0({.pp = 4}, seen);
  EXPECT_EQ(seen.at("pp").ranks, seen.at("pp_backward").ranks);
  EXPECT_EQ(groups.pp->axis(), "pp");
  const at::Tensor x = at::ones({2});
  groups.pp->send_receive({Transfer::send(x, 1, 5)}, "inputs").wait();
  groups.pp->send_receive({Transfer::receive(x, 1, 5 | kBackwardTag)}, "gradients").wait();
  groups.pp->all_reduce(x, ReduceOp::kSum, "all stages").wait();
  EXPECT_EQ(seen.at("pp").sent_tags, std::vector<int>{5});
  EXPECT_EQ(seen.at("pp_backward").sent_tags, std::vector<int>{5 | kBackwardTag});
  EXPECT_EQ(seen.at("pp_backward").all_reduces, 0);
  EXPECT_THROW((void)groups.pp->send_receive({Transfer::send(x, 1, 6), Transfer::send(x, 1, 6 | kBackwardTag)}, "both"),
               InternalError);
}

}  // namespace
}  // namespace megalith
