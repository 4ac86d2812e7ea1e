// Who is at fault when a run hangs, and watchdogs as threads over a board in memory that can stop or go. Processes:
// tests/parallel_processes/watchdog_test.py.
#include "launch/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>

#include "core/time.h"
#include "launch/hang_report.h"

namespace megalith {
namespace {

CollectiveStatus collective(const std::string& label, int64_t ordinal, std::vector<int> ranks, double age_s = 6) {
  const std::string kind = ordinal < 0 ? "send_receive" : "all_reduce";
  return {.text = kind + " dp " + label + " 1.00 KiB",
          .content = kind + " " + label,
          .group = "dp/0",
          .sequence = std::max<int64_t>(ordinal, 0),
          .ordinal = ordinal,
          .ranks = std::move(ranks),
          .age_s = age_s};
}

RankStatus waiting_in(int rank, const CollectiveStatus& waiting) {
  RankStatus status;
  status.rank = rank;
  status.waiting = waiting;
  status.issued["dp/0"] = waiting.ordinal + 1;
  return status;
}

RankStatus idle(int rank, int64_t num_issued) {
  RankStatus status;
  status.rank = rank;
  status.quiet_s = 7;
  status.issued["dp/0"] = num_issued;
  return status;
}

std::string only_fault(const std::vector<RankStatus>& answered, const std::vector<int>& silent = {}) {
  const std::vector<std::string> findings = find_fault(answered, silent);
  EXPECT_EQ(findings.size(), 1) << fmt::format("{}", fmt::join(findings, "\n"));
  return findings.at(0);
}

TEST(HangFault, IsWithRanksThatDoNotAnswer) {
  const CollectiveStatus loss = collective("loss", 4, {0, 1, 2, 3});
  EXPECT_EQ(only_fault({waiting_in(0, loss), waiting_in(1, loss)}, {2, 3}),
            "ranks 2, 3 do not answer: stopped, swapped out, ended, or their hosts are gone");
  EXPECT_EQ(only_fault({waiting_in(0, loss), waiting_in(1, loss), waiting_in(2, loss)}, {3}),
            "rank 3 does not answer: stopped, swapped out, ended, or its host is gone");
}

TEST(HangFault, IsWithARankThatDidNotComeAndWaitsForNothing) {
  const CollectiveStatus loss = collective("loss", 4, {0, 1, 2});
  // Rank 1 has issued four of them, numbers 0 to 3.
  EXPECT_EQ(
      only_fault({waiting_in(0, loss), idle(1, 4), waiting_in(2, loss)}),
      "rank 1 has not issued all_reduce dp loss 1.00 KiB (#4): in no collective for 7.00 s (computing, reading or "
      "writing)");
  EXPECT_EQ(only_fault({waiting_in(0, loss), idle(1, 4), idle(2, 0)}),
            "ranks 1, 2 have not issued all_reduce dp loss 1.00 KiB (#4)");
}

TEST(HangFault, IsWithTheLastOfAChain) {
  // Rank 0 waits for 1, which waits for 2 elsewhere, which computes.
  CollectiveStatus other = collective("w", 0, {1, 2});
  other.group = "tp/1";
  RankStatus middle = waiting_in(1, other);
  middle.issued = {{"tp/1", 1}, {"dp/0", 4}};
  RankStatus last = idle(2, 0);
  EXPECT_EQ(only_fault({waiting_in(0, collective("loss", 4, {0, 1})), middle, last}).substr(0, 40),
            "rank 2 has not issued all_reduce dp w 1.");
}

TEST(HangFault, IsWithRanksThatIssueDifferentCollectives) {
  EXPECT_EQ(only_fault({waiting_in(0, collective("loss", 4, {0, 1})), waiting_in(1, collective("norm", 4, {0, 1}))}),
            "rank 0 issued all_reduce dp loss 1.00 KiB (#4) where rank 1 issued all_reduce dp norm 1.00 KiB (#4)");
}

TEST(HangFault, NamesACircle) {
  CollectiveStatus other = collective("w", 0, {0, 1});
  other.group = "tp/0";
  RankStatus second = waiting_in(1, other);
  second.issued = {{"tp/0", 1}, {"dp/0", 4}};
  const std::vector<std::string> findings = find_fault({waiting_in(0, collective("loss", 4, {0, 1})), second}, {});
  ASSERT_EQ(findings.size(), 2);
  EXPECT_EQ(findings[0], "rank 1 waits in all_reduce dp w 1.00 KiB (#0) instead of all_reduce dp loss 1.00 KiB (#4)");
  EXPECT_EQ(findings[1], "rank 0 waits in all_reduce dp loss 1.00 KiB (#4) instead of all_reduce dp w 1.00 KiB (#0)");
}

TEST(HangFault, IsWithTheNetworkWhenEveryRankHasCome) {
  const CollectiveStatus loss = collective("loss", 4, {0, 1});
  EXPECT_EQ(only_fault({waiting_in(0, loss), waiting_in(1, loss)}),
            "every rank has issued what the others wait in: a network, a device or a driver is stuck");
  // It has issued that one and goes on; what it waits in later is not asked for here.
  EXPECT_EQ(only_fault({waiting_in(0, loss), idle(1, 5)}).substr(0, 10), "every rank");
}

TEST(HangFault, APeerThatWaitsInNothingIsAGuessWhenNothingElseIsKnown) {
  const CollectiveStatus act = collective("act", -1, {0, 1});
  EXPECT_EQ(only_fault({waiting_in(1, act), idle(0, 3)}).substr(0, 42), "rank 0 does not wait in send_receive dp ac");
  EXPECT_EQ(only_fault({waiting_in(1, collective("act", -1, {0, 1, 2})), idle(0, 3)}, {2}).substr(0, 22),
            "rank 2 does not answer");
  EXPECT_EQ(only_fault({waiting_in(0, act), waiting_in(1, act)}).substr(0, 10), "every rank");
}

TEST(HangReport, MergesRanksInTheSameState) {
  const CollectiveStatus loss = collective("loss", 4, {0, 1, 2, 3, 4, 5});
  std::vector<RankStatus> answered;
  for (const int rank : {0, 1, 2, 5}) answered.push_back(waiting_in(rank, loss));
  answered[1].waiting->age_s = 9.5;
  RankStatus busy = idle(3, 4);
  busy.last_finished = collective("norm", 3, {0, 1, 2, 3, 4, 5}, 7);
  answered.push_back(busy);
  EXPECT_EQ(rank_lines(answered, {4}),
            (std::vector<std::string>{
                "ranks 0-2, 5: waiting in all_reduce dp loss 1.00 KiB (#4) for 9.50 s; has finished none",
                "rank 3: in no collective for 7.00 s (computing, reading or writing); last finished all_reduce dp norm "
                "1.00 KiB (#3), 7.00 s ago",
                "rank 4: no answer"}));
  EXPECT_EQ(ranks_text({1, 2}), "ranks 1, 2");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 7, 9, 10, 11}), "ranks 0-3, 7, 9-11");
}

TEST(HangReport, StatesTravelAsJson) {
  RankStatus status = waiting_in(3, collective("layer \"0\"\n", 4, {1, 3}));
  status.last_finished = collective("act", -1, {2, 3}, 0.25);
  status.num_under_way = 5;
  status.quiet_s = 1.5;
  status.issued["tp/2"] = 77;
  const RankStatus read = rank_status_from_json(to_json(status));
  EXPECT_EQ(to_json(read), to_json(status));
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.waiting->ranks, std::vector<int>({1, 3}));
  EXPECT_EQ(read.last_finished->ordinal, -1);
  EXPECT_FALSE(rank_status_from_json(to_json(idle(0, 1))).waiting);
}

using Waiting = CollectiveLog::Waiting;

TEST(HangDetector, CountsTheWaitInOneCollective) {
  HangDetector detector(10);
  double now_s = 50;
  for (int64_t serial = 0; serial < 10; ++serial) {
    for (double age_s = 0; age_s < 9; age_s += 0.25, now_s += 0.25) {
      EXPECT_FALSE(detector.observe(now_s, Waiting{serial, age_s}));
    }
    EXPECT_FALSE(detector.observe(now_s, std::nullopt));
  }
  for (double age_s = 0; age_s < 10; age_s += 0.25, now_s += 0.25) {
    EXPECT_FALSE(detector.observe(now_s, Waiting{11, age_s})) << age_s;
  }
  EXPECT_TRUE(detector.observe(now_s, Waiting{11, 10}));
}

TEST(HangDetector, DoesNotCountTimeInWhichTheProcessDidNotRun) {
  HangDetector detector(10);
  EXPECT_FALSE(detector.observe(0, Waiting{0, 0.5}));
  EXPECT_FALSE(detector.observe(1000, Waiting{0, 1000.5})) << "the job was suspended";
  EXPECT_FALSE(detector.observe(1001, Waiting{0, 1001.5}));
  for (double now_s = 1002; now_s < 1007; ++now_s) EXPECT_FALSE(detector.observe(now_s, Waiting{0, now_s + 0.5}));
  EXPECT_TRUE(detector.observe(1008, Waiting{0, 1008.5}));
  // A collective that began before the process was stopped, and was never looked at.
  HangDetector other(10);
  EXPECT_FALSE(other.observe(0, std::nullopt));
  EXPECT_FALSE(other.observe(1000, Waiting{0, 999.9}));
}

// One map for all ranks. Stopped: nothing returns until it goes on. Gone: everything throws.
class MemoryBoard : public SharedBoard {
 public:
  void set(const std::string& key, const std::string& value) override {
    const auto lock = enter();
    words_[key] = value;
  }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    const auto lock = enter();
    return words_.try_emplace(key, value).first->second;
  }
  std::optional<std::string> find(const std::string& key) override {
    const auto lock = enter();
    const auto found = words_.find(key);
    return found == words_.end() ? std::nullopt : std::optional(found->second);
  }
  void set_state(bool is_stopped, bool is_gone) {
    std::lock_guard lock(mutex_);
    is_stopped_ = is_stopped;
    is_gone_ = is_gone;
    changed_.notify_all();
  }

 private:
  std::unique_lock<std::mutex> enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_stopped_; });
    if (is_gone_) throw std::runtime_error("connection reset");
    return lock;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ = false, is_gone_ = false;
  std::map<std::string, std::string> words_;
};

// Ranks of which some have a watchdog; what each says.
class World {
 public:
  explicit World(int size) : size_(size), all_ranks_(std::make_shared<std::vector<int>>()) {
    for (int rank = 0; rank < size; ++rank) {
      all_ranks_->push_back(rank);
      logs.push_back(std::make_shared<CollectiveLog>(rank));
    }
    said_.resize(static_cast<size_t>(size));
    watchdogs_.resize(static_cast<size_t>(size));
  }
  ~World() {
    board->set_state(false, false);
    watchdogs_.clear();
  }

  // ended: the ranks whose processes this one sees to have ended
  void watch(int rank, double timeout_s = 0.6, const std::vector<int>& ended = {}) {
    watchdogs_[static_cast<size_t>(rank)] =
        std::make_unique<Watchdog>(logs[static_cast<size_t>(rank)], board,
                                   WatchdogSettings{.rank = rank,
                                                    .world_size = size_,
                                                    .timeout_s = timeout_s,
                                                    .server_rank = 0,
                                                    .on_hang =
                                                        [this, rank](const std::string& message) {
                                                          std::lock_guard lock(mutex_);
                                                          said_[static_cast<size_t>(rank)].push_back(message);
                                                        },
                                                    .ended_ranks = [ended] { return ended; },
                                                    .break_patience_s = 0.2,
                                                    .answer_patience_s = 1.5,
                                                    .board_patience_s = 0.7,
                                                    .look_every_s = 0.05,
                                                    .board_every_s = 0.1});
  }
  // The rank sits in a collective of all ranks from now on.
  CollectiveLog::Ticket hang(int rank, const std::string& label) {
    auto record = std::make_shared<CollectiveRecord>();
    record->axis = "world";
    record->label = label;
    return logs[static_cast<size_t>(rank)]->begin(record, all_ranks_);
  }
  // The rank's first message, for which it waits up to 120 s.
  std::string heard(int rank) {
    const Stopwatch watch;
    while (watch.elapsed_s() < 120) {
      {
        std::lock_guard lock(mutex_);
        if (!said_[static_cast<size_t>(rank)].empty()) return said_[static_cast<size_t>(rank)].front();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return "(nothing)";
  }
  size_t num_said(int rank) {
    std::lock_guard lock(mutex_);
    return said_[static_cast<size_t>(rank)].size();
  }
  Watchdog& watchdog(int rank) { return *watchdogs_[static_cast<size_t>(rank)]; }

  std::shared_ptr<MemoryBoard> board = std::make_shared<MemoryBoard>();
  std::vector<std::shared_ptr<CollectiveLog>> logs;

 private:
  int size_;
  std::shared_ptr<std::vector<int>> all_ranks_;
  std::mutex mutex_;
  std::vector<std::vector<std::string>> said_;
  std::vector<std::unique_ptr<Watchdog>> watchdogs_;
};

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in:\n" << text;
}

TEST(Watchdog, AllRanksSayWhoDidNotComeAndOneShowsAll) {
  World world(3);
  world.logs[2]->issued(world.hang(2, "start"), nullptr);
  for (int rank = 0; rank < 3; ++rank) world.watch(rank);
  const CollectiveLog::Ticket first = world.hang(0, "start");
  world.logs[0]->issued(first, nullptr);
  world.logs[1]->issued(world.hang(1, "start"), nullptr);
  world.hang(0, "loss");
  world.hang(1, "loss");
  int num_tables = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = world.heard(rank);
    EXPECT_EQ(text.substr(0, 13), "the run hangs") << text;
    expect_in("\n  rank 2 has not issued barrier world loss 0 B", text);
    const std::string own = rank == 2 ? "in no collective" : "waiting in barrier world loss 0 B (#0)";
    expect_in(own, text);
    expect_in("last finished barrier world start 0 B", text);
    num_tables += text.find("\n  ranks 0, 1: waiting in barrier world loss") != std::string::npos &&
                  text.find("\n  rank 2: in no collective") != std::string::npos;
    EXPECT_EQ(world.num_said(rank), 1);
    EXPECT_TRUE(world.watchdog(rank).is_speaking());
  }
  EXPECT_GE(num_tables, 1);
}

TEST(Watchdog, ARankThatDoesNotAnswerIsNamed) {
  World world(3);
  world.watch(0);
  world.watch(2);
  world.hang(0, "loss");
  world.hang(2, "loss");
  for (const int rank : {0, 2}) expect_in("\n  rank 1 does not answer: stopped", world.heard(rank));
  expect_in("\n  rank 1: no answer", world.heard(0) + world.heard(2));
}

TEST(Watchdog, WhoeverServesTheBoardIsNamedWhenItDoesNotAnswer) {
  World world(2);
  world.watch(1);
  world.board->set_state(/*is_stopped=*/true, false);
  world.hang(1, "loss");
  const std::string text = world.heard(1);
  expect_in("\n  rank 0, which serves the ranks' store, does not answer: stopped", text);
  expect_in("\n  rank 1: waiting in barrier world loss 0 B (#0) for ", text);
}

TEST(Watchdog, ABoardThatIsGoneIsNoHangByItself) {
  World world(2);
  world.watch(1, /*timeout_s=*/0.2);  // before it asks why the wait may be vain, for as long as a break may take
  world.board->set_state(false, /*is_gone=*/true);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // six looks
  EXPECT_EQ(world.num_said(1), 0);
  world.hang(1, "loss");
  expect_in("rank 0, which serves the ranks' store, is gone", world.heard(1));
}

TEST(Watchdog, IsSilentWhileCollectivesEnd) {
  World world(2);
  world.watch(0, /*timeout_s=*/2);
  world.watch(1, /*timeout_s=*/2);
  // Longer than the time-out altogether, each much shorter; and a long time in none.
  for (int i = 0; i < 15; ++i) {
    const CollectiveLog::Ticket tickets[] = {world.hang(0, "loss"), world.hang(1, "loss")};
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    for (const int rank : {0, 1}) world.logs[static_cast<size_t>(rank)]->issued(tickets[rank], nullptr);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  for (const int rank : {0, 1}) {
    world.watchdog(rank).stop();
    EXPECT_FALSE(world.watchdog(rank).is_speaking());
    EXPECT_EQ(world.num_said(rank), 0);
  }
}

TEST(VainWait, IsLongWhenItIsInOneCollectiveAndWithAReason) {
  VainWait wait(3);
  EXPECT_FALSE(wait.observe(0, Waiting{7, 50}, true)) << "it may break by itself";
  EXPECT_FALSE(wait.observe(2, Waiting{7, 52}, true));
  EXPECT_FALSE(wait.observe(3, Waiting{8, 0.5}, true)) << "it goes on with others";
  EXPECT_FALSE(wait.observe(5, Waiting{8, 2.5}, false));
  EXPECT_FALSE(wait.observe(7, Waiting{8, 4.5}, true));
  EXPECT_FALSE(wait.observe(8, std::nullopt, true));
  EXPECT_FALSE(wait.observe(9, Waiting{9, 1}, true));
  EXPECT_TRUE(wait.observe(12, Waiting{9, 4}, true));
}

TEST(Watchdog, WhoWaitsForARankThatHasEndedSaysSoLongBeforeTheTimeOut) {
  World world(3);
  world.watch(0, /*timeout_s=*/600, /*ended=*/{2});
  world.watch(1, /*timeout_s=*/600);  // on another machine: it learns of it from rank 0
  world.hang(0, "connecting the ranks");
  world.hang(1, "loss");
  for (const int rank : {0, 1}) {
    const std::string text = world.heard(rank);
    expect_in("(#0) cannot end: rank 2 is gone: it ended without leaving a reason", text);
    expect_in(fmt::format("\n  rank {}: waiting in barrier world ", rank), text);
    EXPECT_EQ(text.find("the run hangs"), std::string::npos) << text;
    // Rank 0 serves the board, and leaves when the other has read there.
    EXPECT_TRUE(world.board->find(lost_contact_of(1)).has_value());
  }
}

TEST(Watchdog, TheReasonThatARankHasLeftIsWhyAWaitIsVain) {
  World world(3);
  world.board->set(kFirstFailure, "rank 2 failed: data/wiki.bin is too short");
  world.watch(0, /*timeout_s=*/600, /*ended=*/{1, 2});
  world.hang(0, "loss");
  expect_in("(#0) cannot end: rank 2 failed: data/wiki.bin is too short", world.heard(0));
}

TEST(Watchdog, WhoEndsBecauseOfAnotherIsNotBlamed) {
  World world(4);
  for (const int rank : {1, 2}) world.board->set(lost_contact_of(rank), "1");
  world.watch(0, /*timeout_s=*/600, /*ended=*/{1, 3});
  world.hang(0, "loss");
  expect_in("cannot end: rank 3 is gone: it ended", world.heard(0));
}

TEST(Watchdog, WhoeverServedTheBoardIsBlamedWhenItWentWithIt) {
  World world(3);
  world.board->set_state(false, /*is_gone=*/true);
  world.watch(1, /*timeout_s=*/600, /*ended=*/{0, 2});
  world.hang(1, "loss");
  const std::string text = world.heard(1);
  expect_in("cannot end: rank 0 is gone: it ended without leaving a reason", text);
  expect_in("; rank 2 has ended too", text);
}

TEST(Watchdog, WhoeverServedTheBoardIsNotBlamedWhenItFollowedAnother) {
  World world(3);
  world.watch(1, /*timeout_s=*/600, /*ended=*/{2});
  world.hang(1, "connecting the ranks");
  while (world.watchdog(1).known_reason().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  world.board->set_state(false, /*is_gone=*/true);  // rank 0 has read the same reason, and ended
  const std::string text = world.heard(1);
  expect_in("cannot end: rank 2 is gone: it ended", text);
  EXPECT_EQ(text.find("rank 0 is gone"), std::string::npos) << text;
}

TEST(Watchdog, StandsBackWhenItsRankSpeaksForItself) {
  World world(2);
  world.watch(0, /*timeout_s=*/600, /*ended=*/{1});
  world.watchdog(0).stand_back();
  world.hang(0, "loss");
  std::this_thread::sleep_for(std::chrono::milliseconds(800));  // seven looks, and the patience between them
  EXPECT_EQ(world.num_said(0), 0);
}

TEST(Watchdog, SpeaksWhenItIsAskedTo) {
  World world(2);
  world.watch(0, /*timeout_s=*/600);
  world.watch(1, /*timeout_s=*/600);
  world.hang(1, "loss");
  world.watchdog(1).raise("a collective broke");
  EXPECT_EQ(world.heard(1).substr(0, 18), "a collective broke");
  expect_in("rank 0 has not issued barrier world loss", world.heard(1));
  expect_in("rank 0 has not issued barrier world loss", world.heard(0));
}

}  // namespace
}  // namespace megalith
