// A rank's log of its collectives, at every moment between issue and end.
#include "comm/collective_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/single_group.h"
#include "comm/thread_world.h"
#include "launch/hang_report.h"

namespace megalith {
namespace {

// Done when it is told; holds a tensor, as works of back ends do.
class ManualWork : public WorkState {
 public:
  void wait() override {
    if (fails) throw std::runtime_error("connection reset");
    done = true;
  }
  bool is_done() override { return done; }
  bool done = false, fails = false;
  at::Tensor tensor = at::zeros({4});
};

std::shared_ptr<CollectiveRecord> collective_record(std::string label, int64_t sequence,
                                                    CollectiveKind kind = CollectiveKind::kAllReduce) {
  auto record = std::make_shared<CollectiveRecord>();
  record->sequence = sequence;
  record->kind = kind;
  record->axis = "dp";
  record->label = std::move(label);
  record->group_size = 2;
  record->bytes = 4096;
  return record;
}

// A log of rank 2 in a group of ranks 2 and 3, with a clock that only tests move.
struct LogOfRank {
  explicit LogOfRank(bool is_accelerator = false) : log(2, is_accelerator, [this] { return now_s; }) {}

  CollectiveLog::Ticket issue(const std::string& label, const std::shared_ptr<WorkState>& work) {
    const CollectiveLog::Ticket ticket = log.begin(collective_record(label, next_sequence++), ranks);
    log.issued(ticket, work);
    return ticket;
  }

  double now_s = 100;
  int64_t next_sequence = 0;
  std::shared_ptr<const std::vector<int>> ranks = std::make_shared<const std::vector<int>>(std::vector<int>{2, 3});
  CollectiveLog log;
};

TEST(CollectiveLog, FollowsACollectiveFromItsIssueToItsEnd) {
  LogOfRank rank;
  EXPECT_FALSE(rank.log.status().waiting || rank.log.status().last_finished);
  const auto work = std::make_shared<ManualWork>();
  const CollectiveLog::Ticket ticket = rank.log.begin(collective_record("grad bucket 0", 0), rank.ranks);
  rank.now_s = 101;
  RankStatus status = rank.log.status();
  ASSERT_TRUE(status.waiting) << "a thread is inside the issuing";
  EXPECT_EQ(status.rank, 2);
  EXPECT_EQ(status.waiting->text, "all_reduce dp grad bucket 0 4.00 KiB");
  EXPECT_EQ(status.waiting->age_s, 1);
  EXPECT_EQ(status.waiting->ranks, std::vector<int>({2, 3}));
  EXPECT_EQ(status.waiting->group, "dp/2");

  rank.log.issued(ticket, work);
  rank.now_s = 105;
  status = rank.log.status();
  EXPECT_FALSE(status.waiting) << "under way, and nobody waits for it";
  EXPECT_EQ(status.num_under_way, 1);
  EXPECT_EQ(status.quiet_s, 4);

  rank.log.begin_wait(ticket);
  rank.now_s = 108;
  status = rank.log.status();
  ASSERT_TRUE(status.waiting);
  EXPECT_EQ(status.waiting->age_s, 3) << "since the wait began, not since the issue";
  EXPECT_EQ(rank.log.longest_waiting()->age_s, 3);

  rank.log.end_wait(ticket, {});
  rank.now_s = 110;
  status = rank.log.status();
  EXPECT_FALSE(status.waiting || rank.log.longest_waiting());
  EXPECT_EQ(status.num_under_way, 0);
  ASSERT_TRUE(status.last_finished);
  EXPECT_EQ(status.last_finished->text, "all_reduce dp grad bucket 0 4.00 KiB");
  EXPECT_EQ(status.last_finished->age_s, 2);
}

TEST(CollectiveLog, LearnsOfTheEndOfWhatNobodyWaitsFor) {
  LogOfRank rank;
  const auto first = std::make_shared<ManualWork>(), second = std::make_shared<ManualWork>();
  rank.issue("a", first);
  rank.issue("b", second);
  first->done = true;
  const RankStatus status = rank.log.status();
  EXPECT_EQ(status.num_under_way, 1);
  ASSERT_TRUE(status.last_finished);
  EXPECT_EQ(status.last_finished->content, "all_reduce a");
}

TEST(CollectiveLog, NeverAsksAStateThatAThreadIsInside) {
  LogOfRank rank;
  const auto work = std::make_shared<ManualWork>();
  const CollectiveLog::Ticket ticket = rank.issue("a", work);
  rank.log.begin_wait(ticket);
  work->done = true;  // and wait() is about to return
  EXPECT_TRUE(rank.log.status().waiting);
}

TEST(CollectiveLog, HoldsNoWorkAndForgetsWhatWasDropped) {
  LogOfRank rank;
  auto work = std::make_shared<ManualWork>();
  const at::Tensor tensor = work->tensor;
  rank.issue("a", work);
  EXPECT_EQ(work.use_count(), 1);
  work.reset();
  EXPECT_EQ(tensor.use_count(), 1) << "the log keeps the tensor";
  const RankStatus status = rank.log.status();
  EXPECT_EQ(status.num_under_way, 0);
  EXPECT_FALSE(status.last_finished) << "nobody knows how it ended";
}

TEST(CollectiveLog, DoesNotGrowWithWorksThatNobodyWaitsFor) {
  LogOfRank rank;
  std::vector<std::weak_ptr<LoggedCollective>> tickets;
  for (int i = 0; i < 1000; ++i) tickets.push_back(rank.issue("a", std::make_shared<ManualWork>()));
  const auto alive =
      std::count_if(tickets.begin(), tickets.end(), [](const auto& ticket) { return !ticket.expired(); });
  EXPECT_LE(alive, 130);
}

TEST(CollectiveLog, WhatFailedHasNotFinished) {
  const auto log = std::make_shared<CollectiveLog>(0);
  const auto state = std::make_shared<ManualWork>();
  state->fails = true;
  const auto record = collective_record("a", 0);
  const auto ticket = log->begin(record, std::make_shared<const std::vector<int>>(std::vector<int>{0, 1}));
  log->issued(ticket, state);
  Work work(state, record, nullptr, log, ticket);
  EXPECT_THROW(work.wait(), std::runtime_error);
  EXPECT_FALSE(log->status().last_finished || log->status().waiting);
}

TEST(CollectiveLog, OnAnAcceleratorACollectiveLastsUntilTheDeviceHasPassedIt) {
  LogOfRank rank(/*is_accelerator=*/true);
  auto work = std::make_shared<ManualWork>();
  const CollectiveLog::Ticket ticket = rank.issue("a", work);
  rank.now_s = 103;
  ASSERT_TRUE(rank.log.longest_waiting()) << "nobody waits on the host, ever";
  EXPECT_EQ(rank.log.longest_waiting()->age_s, 3) << "since it was issued";
  const auto has_passed = std::make_shared<bool>(false);
  rank.log.begin_wait(ticket);
  rank.log.end_wait(ticket, [has_passed] { return *has_passed; });
  work.reset();  // the caller drops its handle after wait()
  rank.now_s = 104;
  EXPECT_EQ(rank.log.longest_waiting()->age_s, 4);
  EXPECT_EQ(rank.log.status().num_under_way, 1);
  *has_passed = true;
  EXPECT_FALSE(rank.log.longest_waiting());
  ASSERT_TRUE(rank.log.status().last_finished);
  EXPECT_EQ(rank.log.status().last_finished->content, "all_reduce a");
  EXPECT_EQ(has_passed.use_count(), 1) << "what asks is dropped";
}

TEST(CollectiveLog, CountsWhatAllRanksOfAGroupIssueAlike) {
  LogOfRank rank;
  rank.issue("a", nullptr);
  rank.log.issued(rank.log.begin(collective_record("act", 1, CollectiveKind::kSendReceive), rank.ranks), nullptr);
  const CollectiveLog::Ticket third = rank.log.begin(collective_record("b", 2), rank.ranks);
  EXPECT_EQ(third->ordinal, 1) << "sends and receives are not issued by all";
  const RankStatus status = rank.log.status();
  EXPECT_EQ(status.issued, (std::map<std::string, int64_t>{{"dp/2", 2}}));
  EXPECT_EQ(status.last_finished->ordinal, -1);
}

// Through Group and Work: rank 1 looks at what rank 0 does.
TEST(CollectiveLog, GroupsTellItWhatTheirRankDoes) {
  const std::vector<std::shared_ptr<CollectiveLog>> logs = {std::make_shared<CollectiveLog>(0),
                                                            std::make_shared<CollectiveLog>(1)};
  ThreadWorld(2, {.stall_s = 60}).run(Mesh({.dp = 2}), [&](Groups& groups) {
    groups.dp->set_collective_log(logs[static_cast<size_t>(groups.rank)]);
    groups.dp->barrier("start").wait();
    const at::Tensor gradient = at::ones({256});
    if (groups.rank == 0) {
      groups.dp->all_reduce(gradient, ReduceOp::kSum, "grad bucket 0").wait();
      return;
    }
    RankStatus other;
    while (!other.waiting || other.waiting->content == "barrier start") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      other = logs[0]->status();
    }
    EXPECT_EQ(other.waiting->text, "all_reduce dp grad bucket 0 1.00 KiB");
    EXPECT_EQ(other.waiting->sequence, 1);
    EXPECT_EQ(other.waiting->ordinal, 1);
    EXPECT_EQ(other.waiting->ranks, std::vector<int>({0, 1}));
    EXPECT_EQ(other.last_finished->content, "barrier start");
    const RankStatus own = logs[1]->status();
    EXPECT_FALSE(own.waiting);
    EXPECT_EQ(find_fault({other, own}, {}).at(0).substr(0, 72),
              "rank 1 has not issued all_reduce dp grad bucket 0 1.00 KiB (#1): in no c");
    Work work = groups.dp->all_reduce(gradient, ReduceOp::kSum, "grad bucket 0");
    EXPECT_EQ(logs[1]->status().issued.at("dp/0"), 2);
    work.wait();
    EXPECT_EQ(logs[1]->status().last_finished->content, "all_reduce grad bucket 0");
  });
  EXPECT_EQ(logs[0]->status().last_finished->content, "all_reduce grad bucket 0");
  EXPECT_EQ(logs[0]->status().num_under_way, 0);
}

TEST(CollectiveLog, SendsAndReceivesNameTheirPeers) {
  const auto log = std::make_shared<CollectiveLog>(1);
  ThreadWorld(3, {.stall_s = 60}).run(Mesh({.pp = 3}), [&](Groups& groups) {
    if (groups.rank == 1) groups.pp->set_collective_log(log);
    const at::Tensor tensor = at::zeros({4});
    if (groups.rank == 1) groups.pp->send_receive({Transfer::receive(tensor, 0)}, "act").wait();
    if (groups.rank == 0) groups.pp->send_receive({Transfer::send(tensor, 1)}, "act").wait();
  });
  const RankStatus status = log->status();
  ASSERT_TRUE(status.last_finished);
  EXPECT_EQ(status.last_finished->text, "send_receive pp act 16 B");
  EXPECT_EQ(status.last_finished->ranks, std::vector<int>({0, 1}));
}

TEST(CollectiveLog, WhatThrowsWhileItIsIssuedIsNotLeftBehind) {
  const auto log = std::make_shared<CollectiveLog>(0);
  SingleGroup group("tp");
  group.set_collective_log(log);
  const at::Tensor tensor = at::zeros({4});
  // Sends with one tag, receives with another.
  EXPECT_ANY_THROW(
      group.send_receive({Transfer::send(tensor, 0, 1), Transfer::receive(at::zeros({4}), 0, 2)}, "act").wait());
  EXPECT_FALSE(log->longest_waiting());
  EXPECT_EQ(log->status().num_under_way, 0);
}

}  // namespace
}  // namespace megalith
