// Groups over c10d keep the promises of group.h: Gloo, with ranks as threads that know one another only through their
// sockets. Processes, launchers and ranks that die are tests/parallel_processes.
#include "launch/c10d_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/error.h"
#include "core/sha256.h"
#include "core/time.h"
#include "launch/last_words.h"
#include "support/free_port.h"

namespace megalith {
namespace {

// Runs `body` in `size` threads; returns what each rank threw, "" for nothing. A rank whose body throws anything but a
// CommunicationError leaves word of it, as the program does.
std::vector<std::string> run_on(const Mesh& mesh, const std::function<void(Groups&)>& body, double timeout_s = 60) {
  const int size = mesh.world_size();
  std::vector<std::string> errors(static_cast<size_t>(size));
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error_text = errors[static_cast<size_t>(rank)];
      try {
        C10dWorld world({.launcher = Launcher::kTorchrun,
                         .rank = rank,
                         .world_size = size,
                         .local_rank = rank,
                         .local_world_size = size,
                         .master_address = "127.0.0.1",
                         .master_port = port},
                        at::kCPU, timeout_s);
        Groups groups(mesh, rank, world.factory());
        try {
          body(groups);
          world.finish();
        } catch (const CommunicationError&) {
          throw;
        } catch (const std::exception& error) {
          world.report_failure(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        error_text = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> run(int size, const std::function<void(Groups&)>& body, double timeout_s = 60) {
  return run_on(Mesh({.dp = size}), body, timeout_s);
}

void run_well(int size, const std::function<void(Group&)>& body) {
  for (const std::string& error : run(size, [&](Groups& groups) { body(*groups.dp); })) EXPECT_EQ(error, "");
}

at::Tensor of_rank(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  // Small integers: every sum of a few is exact in every dtype, in whatever order.
  return (at::arange(c10::multiply_integers(shape), at::kFloat).remainder(7) + rank).view(shape).to(dtype);
}

at::Tensor sum_of(int size, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  at::Tensor sum = of_rank(0, shape, dtype);
  for (int r = 1; r < size; ++r) sum = sum + of_rank(r, shape, dtype);
  return sum;
}

class C10dSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, C10dSizes, testing::Values(2, 3), testing::PrintToStringParamName());

TEST_P(C10dSizes, AllReduceReducesEveryDtype) {
  run_well(GetParam(), [](Group& group) {
    const int n = group.size();
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt}) {
      const auto reduced = [&](ReduceOp op) {
        const at::Tensor tensor = of_rank(group.rank(), {7}, dtype);
        group.all_reduce(tensor, op, "x").wait();
        return tensor;
      };
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kSum), sum_of(n, {7}, dtype))) << dtype;
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kMax), of_rank(n - 1, {7}, dtype))) << dtype;
      EXPECT_TRUE(at::equal(reduced(ReduceOp::kMin), of_rank(0, {7}, dtype))) << dtype;
      if (at::isFloatingType(dtype)) {
        EXPECT_TRUE(at::equal(reduced(ReduceOp::kAvg), sum_of(n, {7}, dtype) / n)) << dtype;
      }
    }
    EXPECT_EQ(group.reduced(group.rank() + 0.5, ReduceOp::kSum, "x"), n * (n - 1) / 2 + 0.5 * n);
    group.all_reduce(at::empty({0}), ReduceOp::kSum, "nothing").wait();
  });
}

TEST_P(C10dSizes, AllGatherPutsRanksBehindOneAnother) {
  run_well(GetParam(), [](Group& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kBool, at::kShort, at::kByte}) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < group.size(); ++r) parts.push_back(of_rank(r, {2, 3}, dtype));
      const at::Tensor in = of_rank(group.rank(), {2, 3}, dtype), expected = at::cat(parts);
      EXPECT_TRUE(at::equal(group.gathered(in, "w"), expected)) << dtype;
      const at::Tensor in_place = at::zeros({2 * group.size(), 3}, dtype);
      const at::Tensor own_rows = in_place.narrow(0, 2 * group.rank(), 2);
      own_rows.copy_(in);
      group.all_gather(in_place, own_rows, "w").wait();
      EXPECT_TRUE(at::equal(in_place, expected)) << dtype;
    }
    const at::Tensor ranks = group.gathered(at::scalar_tensor(group.rank(), at::kLong), "rank");
    EXPECT_TRUE(at::equal(ranks, at::arange(group.size(), at::kLong)));
    EXPECT_EQ(group.gathered(at::empty({0, 3}), "nothing").numel(), 0);
  });
}

TEST_P(C10dSizes, ReduceScatterIsOnesRowsOfTheReduction) {
  run_well(GetParam(), [](Group& group) {
    const int n = group.size();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor in = of_rank(group.rank(), {3 * n, 2}, dtype);
      const auto own = [&](const at::Tensor& whole) { return whole.narrow(0, 3 * group.rank(), 3); };
      const at::Tensor sum = sum_of(n, {3 * n, 2}, dtype);
      EXPECT_TRUE(at::equal(group.reduce_scattered(in, ReduceOp::kSum, "g"), own(sum))) << dtype;
      EXPECT_TRUE(at::equal(in, of_rank(group.rank(), {3 * n, 2}, dtype))) << "the input was changed";
      EXPECT_TRUE(at::equal(group.reduce_scattered(in, ReduceOp::kAvg, "g"), own(sum / n))) << dtype;
      EXPECT_TRUE(at::equal(group.reduce_scattered(in, ReduceOp::kMax, "g"), own(of_rank(n - 1, {3 * n, 2}, dtype))));
      const at::Tensor in_place = in.clone();
      group.reduce_scatter(own(in_place), in_place, ReduceOp::kSum, "g").wait();
      EXPECT_TRUE(at::equal(own(in_place), own(sum))) << dtype;
    }
  });
}

TEST_P(C10dSizes, AllToAllMovesUnevenRows) {
  run_well(GetParam(), [](Group& group) {
    // Rank a sends a + b rows, all a * 10 + b, to rank b; rank 0 sends itself nothing.
    std::vector<int64_t> in_splits, out_splits;
    std::vector<at::Tensor> in, out;
    for (int other = 0; other < group.size(); ++other) {
      in_splits.push_back(group.rank() + other);
      in.push_back(at::full({group.rank() + other, 3}, group.rank() * 10 + other, at::kBFloat16));
      out_splits.push_back(group.rank() + other);
      out.push_back(at::full({group.rank() + other, 3}, other * 10 + group.rank(), at::kBFloat16));
    }
    EXPECT_TRUE(at::equal(group.exchanged(at::cat(in), out_splits, in_splits, "tokens"), at::cat(out)));

    // Only rank 1 has something, and sends it to rank 0: the others have empty tensors.
    std::vector<int64_t> sent(static_cast<size_t>(group.size())), received = sent;
    if (group.rank() == 1) sent[0] = 2;
    if (group.rank() == 0) received[1] = 2;
    const at::Tensor rows = at::full({group.rank() == 1 ? 2 : 0, 5}, 4.0);
    const at::Tensor got = group.exchanged(rows, received, sent, "tokens");
    EXPECT_TRUE(at::equal(got, at::full({group.rank() == 0 ? 2 : 0, 5}, 4.0)));
    EXPECT_TRUE(at::equal(group.exchanged(at::full({group.size()}, group.rank(), at::kInt), {}, {}, "even"),
                          at::arange(group.size(), at::kInt)));
  });
}

TEST_P(C10dSizes, BroadcastTakesTheRootsTensor) {
  run_well(GetParam(), [](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor tensor = of_rank(group.rank(), {5}, at::kHalf);
      group.broadcast(tensor, root, "w").wait();
      EXPECT_TRUE(at::equal(tensor, of_rank(root, {5}, at::kHalf)));
    }
  });
}

TEST_P(C10dSizes, SendsAndReceivesGoAroundARingAndToOneself) {
  run_well(GetParam(), [](Group& group) {
    const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    const at::Tensor from_previous = at::zeros({4}), second = at::zeros({4}), from_self = at::zeros({2});
    group
        .send_receive({Transfer::receive(from_previous, previous, 3), Transfer::receive(second, previous, 3),
                       Transfer::send(of_rank(group.rank(), {4}), next, 3),
                       Transfer::send(of_rank(group.rank() + 50, {4}), next, 3),
                       Transfer::send(of_rank(9, {2}), group.rank()), Transfer::receive(from_self, group.rank())},
                      "act")
        .wait();
    EXPECT_TRUE(at::equal(from_previous, of_rank(previous, {4})));
    EXPECT_TRUE(at::equal(second, of_rank(previous + 50, {4})));
    EXPECT_TRUE(at::equal(from_self, of_rank(9, {2})));
    group.barrier("end").wait();
  });
}

TEST(C10dWorld, EveryGroupOfAMeshIsThere) {
  for (const std::string& error : run(2, [](Groups& groups) {
         for (const Groups::Pointer& group : groups.all()) {
           EXPECT_EQ(group->reduced(1, ReduceOp::kSum, "ranks"), group->size()) << group->axis();
         }
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(C10dWorld, AGroupConnectsAtItsFirstUseAndThoseAcrossStagesAtOnce) {
  for (const std::string& error : run_on(Mesh({.tp = 2, .pp = 2}), [](Groups& groups) {
         EXPECT_TRUE(groups.world->is_connected());
         EXPECT_TRUE(groups.pp->is_connected());
         EXPECT_TRUE(groups.embedding->is_connected()) << "it has the ranks of pp";
         EXPECT_FALSE(groups.tp->is_connected());
         EXPECT_EQ(groups.tp->reduced(groups.rank % 2, ReduceOp::kSum, "x"), 1);
         EXPECT_TRUE(groups.tp->is_connected());
         EXPECT_TRUE(groups.tp_cp->is_connected()) << "it has the ranks of tp";
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(C10dWorld, WhatARankSendsToItselfNeedsNoConnection) {
  for (const std::string& error : run_on(Mesh({.tp = 2, .dp = 2}), [](Groups& groups) {
         if (groups.rank == 0) {
           const at::Tensor received = at::zeros({2});
           groups.tp->send_receive({Transfer::send(at::ones({2}), 0), Transfer::receive(received, 0)}, "x").wait();
           EXPECT_TRUE(at::equal(received, at::ones({2})));
           EXPECT_FALSE(groups.tp->is_connected());
         }
       })) {
    EXPECT_EQ(error, "");
  }
}

// Expects the words of a library below us without its source files, greetings and advice.
void expect_our_words(const std::string& error) {
  EXPECT_NE(error.find("\n  cause: "), std::string::npos) << error;
  for (const char* theirs : {"GLHF", ".cc:", ".cpp:", "http", "worker", "Did the", "[/", "Exception"}) {
    EXPECT_EQ(error.find(theirs), std::string::npos) << theirs << " in:\n" << error;
  }
}

TEST(C10dWorld, OthersLearnWhyARankFailed) {
  const std::vector<std::string> errors = run(3, [](Groups& groups) {
    groups.world->all_reduce(at::zeros({1}), ReduceOp::kSum, "all are here").wait();
    if (groups.rank == 1) throw UserError("data/wiki.bin is too short", "copy it again");
    groups.dp->all_reduce(at::zeros({4}), ReduceOp::kSum, "grad bucket 0").wait();
  });
  EXPECT_EQ(errors[1], "data/wiki.bin is too short\n  copy it again");
  for (const size_t rank : {0, 2}) {
    EXPECT_NE(errors[rank].find("all_reduce 'grad bucket 0' over dp (ranks 0, 1, 2) failed: rank 1 failed: "
                                "data/wiki.bin is too short"),
              std::string::npos)
        << errors[rank];
    expect_our_words(errors[rank]);
    EXPECT_NE(errors[rank].find("\n  cause: the connection to 127.0.0.1 port "), std::string::npos) << errors[rank];
  }
}

TEST(C10dWorld, ARankThatLeavesWithoutAWordIsAmongTheSuspects) {
  const std::vector<std::string> errors = run(3, [](Groups& groups) {
    groups.dp->barrier("all groups are made").wait();
    if (groups.rank == 2) throw CommunicationError("gone");  // not reported
    groups.dp->reduced(1, ReduceOp::kSum, "loss");
  });
  // Gloo's ring: one of the two is connected to rank 2, and the other hears of its end from that one.
  bool is_named = false;
  for (const size_t rank : {0, 1}) {
    const std::string& error = errors[rank];
    EXPECT_NE(error.find("all_reduce 'loss' over dp (ranks 0, 1, 2) failed: "), std::string::npos) << error;
    const std::string first_line = error.substr(0, error.find('\n'));
    is_named |= first_line.find("2 is gone or stuck") != std::string::npos;
    EXPECT_EQ(first_line.find(fmt::format("{} is gone", rank)), std::string::npos)
        << "nobody suspects itself: " << error;
  }
  EXPECT_TRUE(is_named) << errors[0] << "\n" << errors[1];
}

TEST(C10dWorld, ARankThatDoesNotComeIsNamedAfterTheTimeOut) {
  const std::vector<std::string> errors = run(
      2,
      [&](Groups& groups) {
        if (groups.rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(5));
        } else {
          groups.dp->barrier("start").wait();
        }
      },
      /*timeout_s=*/1);
  EXPECT_NE(errors[0].find("barrier 'start' over dp (ranks 0, 1) failed: rank 1 is gone or stuck"), std::string::npos)
      << errors[0];
  expect_our_words(errors[0]);
  EXPECT_NE(errors[0].find(" for 1.00 s\n  see what the other ranks do"), std::string::npos) << errors[0];
}

TEST(C10dWorld, RanksThatNeverStartAreSaidToBeMissing) {
  const int port = free_port();
  Launch launch{.launcher = Launcher::kTorchrun, .rank = 0, .world_size = 2, .local_world_size = 2};
  launch.master_address = "127.0.0.1";
  launch.master_port = port;
  try {
    C10dWorld world(launch, at::kCPU, /*timeout_s=*/1);
    ADD_FAILURE() << "nobody else was there";
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("the 2 ranks did not meet at 127.0.0.1:"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 1 has not come"), std::string::npos) << error.what();
  }
}

TEST(C10dWorld, ARankWhoseRank0NeverStartsSaysWhereItLooked) {
  Launch launch{.launcher = Launcher::kTorchrun, .rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2};
  launch.master_address = "127.0.0.1";
  launch.master_port = free_port();
  try {
    C10dWorld world(launch, at::kCPU, /*timeout_s=*/1);
    ADD_FAILURE() << "nobody else was there";
  } catch (const CommunicationError& error) {
    const std::string expected =
        fmt::format("cannot be reached: no connection to 127.0.0.1 port {} came about\n  see", launch.master_port);
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(C10dWorld, ARestartedRankIsNotMetByTheDeadOfAnUnfinishedRound) {
  // A launcher's store after rank 1 was killed before it came, and rank 0 while it waited for rank 1.
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = static_cast<uint16_t>(free_port());
  options.waitWorkers = false;
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  store->add("megalith/round", 1);
  store->set("megalith/1/world_size", "2");
  store->set("megalith/1/rank/0", "process 1 on a host of its own");
  store->set("megalith/1/process/0", "unknown");
  store->add("megalith/1/registered", 1);
  std::vector<std::string> errors(2);
  const auto start = [&](int rank) {
    return std::thread([&, rank] {
      try {
        C10dWorld world({.launcher = Launcher::kTorchrun,
                         .rank = rank,
                         .world_size = 2,
                         .local_rank = rank,
                         .local_world_size = 2,
                         .master_address = "127.0.0.1",
                         .master_port = options.port,
                         .has_agent_store = true,
                         .restart_count = 1},
                        at::kCPU, /*timeout_s=*/20);
        Groups groups(Mesh({.dp = 2}), rank, world.factory());
        EXPECT_EQ(groups.dp->reduced(rank + 1, ReduceOp::kSum, "x"), 3);
        world.finish();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  };
  std::thread first = start(1);
  while (store->add("megalith/1/registered", 0) < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread second = start(0);
  first.join();
  second.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

Launch rank_of_two(int rank, int port) {
  return {.launcher = Launcher::kTorchrun,
          .rank = rank,
          .world_size = 2,
          .local_rank = rank,
          .local_world_size = 2,
          .master_address = "127.0.0.1",
          .master_port = port};
}

// Errors of two ranks that bring these terms; the speaker's begins with "speaks: ".
//   launchers_port  of a store that is there already; 0: rank 0 serves it
std::vector<std::string> meet_with(const std::vector<MeetingTerms>& terms, int launchers_port = 0) {
  const int port = launchers_port > 0 ? launchers_port : free_port();
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& text = errors[static_cast<size_t>(rank)];
      try {
        Launch launch = rank_of_two(rank, port);
        launch.has_agent_store = launchers_port > 0;
        C10dWorld world(launch, at::kCPU, /*timeout_s=*/60, terms[static_cast<size_t>(rank)]);
        Groups groups(Mesh({.dp = 2}), rank, world.factory());
        EXPECT_EQ(groups.dp->reduced(rank + 1, ReduceOp::kSum, "x"), 3);
        world.finish();
      } catch (const DifferentTerms& error) {
        text = fmt::format("{}{}", error.is_speaker() ? "speaks: " : "", error.what());
      } catch (const std::exception& error) {
        text = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

using Terms = std::vector<Term>;

TEST(C10dWorld, RanksWithDifferentTermsAreToldWhichBeforeAnyCollective) {
  const Terms one = {{TermKind::kOption, "lr", "1"}, {TermKind::kOption, "seed", "2"}};
  const Terms other = {{TermKind::kOption, "lr", "3"}, {TermKind::kOption, "seed", "2"}};
  EXPECT_EQ(meet_with({{one}, {one}}), std::vector<std::string>(2));
  std::vector<std::string> told = meet_with({{one}, {other}});
  std::sort(told.begin(), told.end());
  const std::string said =
      "the ranks of this run have different options\n  lr: 1 on rank 0, 3 on rank 1\n  use one command line and one "
      "configuration on all ranks";
  EXPECT_EQ(told, (std::vector<std::string>{"speaks: " + said, said}));
  // A rank that comes only to say why it fails brings no terms.
  EXPECT_EQ(meet_with({{one}, {}}), std::vector<std::string>(2));
}

// A store that a launcher serves: for what other processes do there, and outlive.
struct LaunchersStore {
  int port = free_port();
  c10::intrusive_ptr<c10d::Store> store;

  LaunchersStore() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.port = static_cast<uint16_t>(port);
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  // Error of a rank of two that meets no other.
  std::string refusal(int rank, const MeetingTerms& terms, double timeout_s = 20) const {
    Launch launch = rank_of_two(rank, port);
    launch.has_agent_store = true;
    try {
      C10dWorld world(launch, at::kCPU, timeout_s, terms);
      return "met";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // As rank 1 of a program that knows of no terms and no secret.
  void register_older_rank() const {
    for (const char* round : {"0", "1"}) {
      const std::string key = fmt::format("megalith/{}/", round);
      store->set(key + "process/1", "unknown");
      store->set(key + "rank/1", "process 1 on a host of its own");
      store->add(key + "registered", 1);
    }
  }
};

TEST(C10dWorld, AnOlderProgramThatDoesNotCompareIsNamed) {
  const LaunchersStore there;
  there.register_older_rank();
  const std::string said = there.refusal(0, {{{TermKind::kOption, "lr", "1"}}});
  EXPECT_EQ(said.find("the ranks of this run have different programs\n  program: an older one, which does not "
                      "compare, on rank 1\n"),
            0U)
      << said;
}

TEST(C10dWorld, RanksThatAreStartedAnewCompareAgain) {
  const Terms one = {{TermKind::kOption, "lr", "1"}}, other = {{TermKind::kOption, "lr", "3"}};
  const LaunchersStore there;
  EXPECT_EQ(meet_with({{one}, {one}}, there.port), std::vector<std::string>(2));
  for (const std::string& text : meet_with({{one}, {other}}, there.port)) {
    EXPECT_NE(text.find("lr: 1 on rank 0, 3 on rank 1"), std::string::npos) << text;
  }
  EXPECT_EQ(meet_with({{other}, {other}}, there.port), std::vector<std::string>(2));
}

const std::string kSecret = "0123456789abcdef";

TEST(C10dWorld, RanksThatShareASecretMeet) {
  EXPECT_EQ(meet_with({{{}, kSecret}, {{}, kSecret}}), std::vector<std::string>(2));
}

TEST(C10dWorld, AStrangerTakesNoRanksPlaceWhereThereIsASecret) {
  const LaunchersStore there;
  there.register_older_rank();
  const std::string said = there.refusal(0, {{}, kSecret}, /*timeout_s=*/0.5);
  EXPECT_NE(said.find("rank 1 has not come"), std::string::npos) << said;
}

TEST(C10dWorld, WhatAStrangerWritesOverTheRanksWordsIsNotBelieved) {
  const LaunchersStore there;
  std::thread rank_0([&] { there.refusal(0, {{}, kSecret}, /*timeout_s=*/2); });
  const auto sealed_keys = [&] {
    std::vector<std::string> keys = there.store->listKeys();
    std::erase_if(keys, [](const std::string& key) { return key.size() < 64; });
    return keys;
  };
  while (sealed_keys().size() < 8) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (const std::string& key : sealed_keys()) {
    EXPECT_EQ(key.find("rank"), std::string::npos);
    there.store->set(key, "1");
  }
  const std::string said = there.refusal(1, {{}, kSecret});
  EXPECT_NE(said.find("without the run's secret (store_secret_file) has written"), std::string::npos) << said;
  rank_0.join();
}

TEST(C10dWorld, ARankWithAnotherSecretOrNoneIsToldAtOnce) {
  const std::string another = "fedcba9876543210";
  struct Row {
    std::string first, own;
    const char* expected;
  };
  for (const Row& row : {Row{kSecret, "", "rank 1 has no store secret, and the first rank that came to 127.0.0.1:"},
                         Row{kSecret, another, " has another\n  give all ranks a --store_secret_file"},
                         Row{"", kSecret, " has none\n  give all ranks a --store_secret_file"}}) {
    const LaunchersStore there;
    there.store->set("megalith_secret", row.first.empty() ? "none" : hmac_sha256(row.first, "megalith_secret"));
    const std::string said = there.refusal(1, {{}, row.own});
    EXPECT_NE(said.find(row.expected), std::string::npos) << said;
    EXPECT_TRUE(there.store->check({"megalith_stranger"}));  // the others say at their time-out that one came
  }
}

// Over a wrong size Gloo throws on a thread of its own, where no caller can catch it.
TEST(C10dWorldDeathTest, AnErrorOnAThreadOfGloosEndsAsOurMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::set_terminate(end_for_uncaught_exception);
        run(2, [](Groups& groups) {
          const at::Tensor tensor = at::ones({groups.rank == 0 ? 4096 : 1024});
          groups.dp->all_reduce(tensor, ReduceOp::kSum, "x").wait();
          std::this_thread::sleep_for(std::chrono::seconds(20));
        });
      },
      testing::ExitedWithCode(1), "error: a thread of this process failed\n  cause: another rank sent [0-9]+ bytes");
}

TEST(C10dWorld, OneRankNeedsNoAddress) {
  C10dWorld world({}, at::kCPU, /*timeout_s=*/20);
  const std::shared_ptr<Group> group = world.factory()({0}, "world");
  EXPECT_EQ(group->reduced(2.5, ReduceOp::kSum, "x"), 2.5);
  group->barrier("end").wait();
  world.finish();
}

}  // namespace
}  // namespace megalith
