// The bug finder: what goes wrong between ranks is named, quickly, with both sides.
#include "comm/thread_world.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "core/error.h"
#include "core/time.h"

namespace megalith {
namespace {

testing::AssertionResult contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "'" << part << "' is not in:\n" << text;
    }
  }
  return testing::AssertionSuccess();
}

// Runs `body` on `size` ranks of a dp group and returns what run() throws; "" when nothing.
std::string error_of(int size, const std::function<void(Group&)>& body,
                     ThreadWorldSettings settings = {.stall_s = 0.1}) {
  try {
    ThreadWorld(size, settings).run(Mesh({.dp = size}), [&](Groups& groups) { body(*groups.dp); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(BugFinder, NamesTheFirstCollectiveThatDiffers) {
  const std::string kind = error_of(2, [](Group& group) {
    const at::Tensor x = at::zeros({4});
    group.barrier("start").wait();
    if (group.rank() == 0) group.all_reduce(x, ReduceOp::kSum, "loss").wait();
    if (group.rank() == 1) group.broadcast(x, 0, "weight").wait();
  });
  EXPECT_TRUE(contains(kind, {"collective 1 of group dp (ranks 0, 1)", "rank 0 issued all_reduce 'loss' Float [4] sum",
                              "rank 1 issued broadcast 'weight' Float [4] from rank 0"}));
}

TEST(BugFinder, ComparesLabelShapeDtypeOperationAndRoot) {
  const auto differs = [](const std::function<Work(Group&)>& issue) {
    EXPECT_TRUE(contains(error_of(3, [&](Group& group) { issue(group).wait(); }), {"ranks differ in collective 0"}));
  };
  differs([](Group& group) { return group.all_reduce(at::zeros({4}), ReduceOp::kSum, group.rank() == 2 ? "a" : "b"); });
  differs([](Group& group) { return group.all_reduce(at::zeros({4 + group.rank() / 2}), ReduceOp::kSum, "a"); });
  differs([](Group& group) {
    return group.all_reduce(at::zeros({4}, group.rank() == 1 ? at::kHalf : at::kFloat), ReduceOp::kSum, "a");
  });
  differs([](Group& group) {
    return group.all_reduce(at::zeros({4}), group.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum, "a");
  });
  differs([](Group& group) { return group.broadcast(at::zeros({4}), group.rank() == 1 ? 1 : 0, "a"); });
}

// dp and the world are one communicator here.
TEST(BugFinder, ComparesTheAxesOfWhatMeets) {
  const auto error = [](const std::function<void(Group&)>& body) {
    try {
      ThreadWorld(2, {.stall_s = 0.1}).run(Mesh({.dp = 2}), [&](Groups& groups) {
        body(groups.rank == 0 ? *groups.dp : *groups.world);
      });
    } catch (const std::exception& exception) {
      return std::string(exception.what());
    }
    return std::string();
  };
  EXPECT_TRUE(contains(error([](Group& group) { group.barrier("step").wait(); }),
                       {"ranks differ in collective 0", "rank 0 issued barrier 'step' over dp",
                        "rank 1 issued barrier 'step' over world"}));
  EXPECT_TRUE(
      contains(error([](Group& group) {
                 const at::Tensor x = at::zeros({2});
                 group.send_receive({group.rank() == 0 ? Transfer::send(x, 1) : Transfer::receive(x, 0)}, "act").wait();
               }),
               {"rank 0 as Float [2] with tag 0 over dp", "rank 1 as Float [2] with tag 0 over world"}));
}

TEST(BugFinder, ComparesBothEndsOfATransfer) {
  const auto error = [](at::IntArrayRef shape, at::ScalarType dtype, int tag) {
    return error_of(2, [&](Group& group) {
      if (group.rank() == 0) group.send_receive({Transfer::send(at::zeros({2, 3}), 1, 5)}, "act").wait();
      if (group.rank() == 1) group.send_receive({Transfer::receive(at::zeros(shape, dtype), 0, tag)}, "act").wait();
    });
  };
  EXPECT_EQ(error({2, 3}, at::kFloat, 5), "");
  EXPECT_TRUE(contains(error({3, 2}, at::kFloat, 5),
                       {"rank 0 as Float [2, 3] with tag 5", "rank 1 as Float [3, 2] with tag 5"}));
  EXPECT_TRUE(contains(error({2, 3}, at::kBFloat16, 5), {"BFloat16 [2, 3]"}));
  EXPECT_TRUE(contains(error({2, 3}, at::kFloat, 6), {"with tag 6"}));
}

TEST(BugFinder, ComparesSplits) {
  EXPECT_TRUE(
      contains(error_of(2,
                        [](Group& group) {
                          const std::vector<int64_t> out_splits = {1, 1}, in_splits = {1, group.rank() == 0 ? 1 : 2};
                          const at::Tensor in = at::zeros({group.rank() == 0 ? 2 : 3, 4});
                          group.exchanged(in, out_splits, in_splits, "tokens");
                        }),
               {"rank 1 sends 2 row(s) to rank 1, which expects 1"}));
}

TEST(BugFinder, ResultsAreNotANumberBeforeWait) {
  ThreadWorld(2).run(Mesh({.dp = 2}), [](Groups& groups) {
    Group& group = *groups.dp;
    const at::Tensor in_place = at::ones({3}), out = at::ones({2, 3}), half = at::ones({4}, at::kBFloat16);
    const at::Tensor ids = at::ones({2}, at::kLong);
    Work first = group.all_reduce(in_place, ReduceOp::kSum, "a");
    Work second = group.all_gather(out, at::ones({1, 3}), "b");
    Work third = group.all_reduce(half, ReduceOp::kMax, "c");
    Work fourth = group.all_reduce(ids, ReduceOp::kMax, "ids");
    EXPECT_TRUE(at::isnan(in_place).all().item<bool>());
    EXPECT_TRUE(at::isnan(out).all().item<bool>());
    EXPECT_TRUE(at::isnan(half).all().item<bool>());
    EXPECT_EQ(ids[0].item<int64_t>(), 0x7B7B7B7B7B7B7B7B);
    for (Work* work : {&fourth, &third, &second, &first}) work->wait();  // in any order
    EXPECT_TRUE(at::equal(in_place, at::full({3}, 2.0f)));
    EXPECT_TRUE(at::equal(out, at::ones({2, 3})));
    EXPECT_EQ(ids[0].item<int64_t>(), 1);
  });
}

TEST(BugFinder, BuffersTouchedBeforeWaitAreNoticed) {
  EXPECT_TRUE(contains(error_of(2,
                                [](Group& group) {
                                  const at::Tensor in = at::ones({3}), out = at::empty({6});
                                  Work work = group.all_gather(out, in, "w");
                                  if (group.rank() == 1) in.add_(1);
                                  work.wait();
                                }),
                       {"all_gather dp 'w': its input Float [3] was changed before wait()"}));
  EXPECT_TRUE(contains(error_of(2,
                                [](Group& group) {
                                  const at::Tensor x = at::ones({3});
                                  Work work = group.all_reduce(x, ReduceOp::kSum, "g");
                                  x.zero_();
                                  work.wait();
                                }),
                       {"its output Float [3] was written before wait()"}));
  EXPECT_TRUE(contains(error_of(2,
                                [](Group& group) {
                                  const at::Tensor out = at::ones({6});
                                  Work work = group.all_gather(out, at::ones({3}), "w");
                                  out.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr());
                                  out.storage().unsafeGetStorageImpl()->set_nbytes(0);
                                  work.wait();
                                }),
                       {"released before wait()"}));
}

TEST(BugFinder, RanksThatShareMemoryAreNoticed) {
  const at::Tensor shared = at::zeros({8});
  EXPECT_TRUE(contains(error_of(2, [&](Group& group) { group.all_reduce(shared, ReduceOp::kSum, "w").wait(); }),
                       {"pass the same memory"}));
}

TEST(BugFinder, ADeadlockSaysWhatEveryRankWaitsFor) {
  const Stopwatch watch;
  const std::string error = error_of(3, [](Group& group) {
    const at::Tensor x = at::zeros({2});
    if (group.rank() == 0) group.all_reduce(x, ReduceOp::kSum, "loss").wait();
    if (group.rank() == 1) group.send_receive({Transfer::receive(x, 2, 4)}, "act").wait();
  });
  EXPECT_TRUE(contains(error, {"rank 0 waits for all_reduce dp 'loss' (not issued by rank 1, 2)",
                               "rank 1 waits for send_receive dp 'act' (message 0 from rank 2 to rank 1, tag 4)",
                               "rank 2 has finished"}));
  EXPECT_LT(watch.elapsed_s(), 50) << "it waited for its time-out";
}

TEST(BugFinder, ASendWithoutItsReceiveIsADeadlock) {
  // Each sends first and waits: works as long as messages are small enough to be buffered, so it is an error here.
  EXPECT_TRUE(contains(error_of(2,
                                [](Group& group) {
                                  const at::Tensor x = at::zeros({2});
                                  group.send_receive({Transfer::send(x, 1 - group.rank())}, "out").wait();
                                  group.send_receive({Transfer::receive(x, 1 - group.rank())}, "in").wait();
                                }),
                       {"deadlock"}));
}

TEST(BugFinder, WaitingTooLongIsAnErrorEvenWhileOthersCompute) {
  std::atomic<bool> failed{false};
  const std::string error = error_of(2,
                                     [&](Group& group) {
                                       if (group.rank() == 1) {
                                         while (!failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                         return;
                                       }
                                       try {
                                         group.barrier("step").wait();
                                       } catch (...) {
                                         failed = true;
                                         throw;
                                       }
                                     },
                                     {.timeout_s = 0.1});
  EXPECT_TRUE(contains(error, {"no answer within 0.1 s", "rank 1 is outside of any wait()"}));
}

TEST(ThreadWorld, OneFailureEndsAllRanksAndIsRethrown) {
  std::atomic<int> num_peer_errors{0};
  const Stopwatch watch;
  try {
    ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
      if (groups.rank == 2) throw UserError("the disk is full", "delete something");
      try {
        groups.world->barrier("step").wait();
      } catch (const PeerError& error) {
        EXPECT_EQ(error.failed_rank(), 2);
        EXPECT_TRUE(contains(error.what(), {"rank 2 failed: the disk is full"}));
        ++num_peer_errors;
        throw;
      }
    });
    FAIL() << "run() did not throw";
  } catch (const UserError& error) {
    EXPECT_EQ(error.remedy(), "delete something");
  }
  EXPECT_EQ(num_peer_errors, 3);
  EXPECT_LT(watch.elapsed_s(), 50) << "they waited for their time-out";
}

TEST(ThreadWorld, WhatWasReadyBeforeAFailureStaysReady) {
  std::atomic<bool> has_thrown{false};
  EXPECT_EQ(error_of(2,
                     [&](Group& group) {
                       Work work = group.barrier("step");
                       if (group.rank() == 1) {
                         work.wait();
                         has_thrown = true;
                         throw std::runtime_error("late");
                       }
                       while (!has_thrown) std::this_thread::yield();
                       EXPECT_NO_THROW(work.wait());
                     }),
            "late");
}

TEST(ThreadWorld, MayBeUsedAgainAndGroupsMadeTwice) {
  const ThreadWorld world(3);
  for (int round = 0; round < 2; ++round) {
    world.run([](int rank, const GroupFactory& factory) {
      const auto first = factory({0, 1, 2}, "world"), second = factory({0, 1, 2}, "world");
      Work early = first->barrier("a");
      EXPECT_EQ(second->reduced(rank, ReduceOp::kSum, "b"), 3);
      early.wait();
    });
  }
}

TEST(ThreadWorld, ResultsAreBitEqualInEveryRunAndRank) {
  std::vector<at::Tensor> results;
  for (int round = 0; round < 3; ++round) {
    std::vector<at::Tensor> of_rank(4);
    ThreadWorld(4).run(Mesh({.dp = 4}), [&](Groups& groups) {
      at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(groups.rank));
      const at::Tensor x = at::randn({1001}, generator, at::TensorOptions().dtype(at::kFloat));
      std::this_thread::sleep_for(std::chrono::milliseconds((groups.rank * 7 + round * 3) % 5));
      groups.dp->all_reduce(x, ReduceOp::kSum, "x").wait();
      of_rank[static_cast<size_t>(groups.rank)] = x;
    });
    results.insert(results.end(), of_rank.begin(), of_rank.end());
  }
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results.front()));
}

TEST(ThreadWorld, EveryRankHasItsOwnAutograd) {
  ThreadWorld(4).run(Mesh({.dp = 4}), [](Groups& groups) {
    // d/dw sum((rank + 1) w²) = 2 (rank + 1) w; the mean over four ranks is 5 w.
    const at::Tensor w = at::full({3}, 2.0f).requires_grad_(true);
    for (int step = 0; step < 20; ++step) {
      w.mutable_grad() = at::Tensor();
      (w * w * (groups.rank + 1)).sum().backward();
      groups.dp->all_reduce(w.grad(), ReduceOp::kAvg, "w.grad").wait();
      ASSERT_TRUE(at::equal(w.grad(), at::full({3}, 10.0f)));
    }
  });
}

TEST(ThreadWorld, RanksComputeWithOneThread) {
  const int before = at::get_num_threads();
  ThreadWorld(2).run([](int, const GroupFactory&) { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), before);
}

// True if nothing took longer than the model says. Each try also expects it to take at least that long.
bool takes_no_more_than_the_model() {
  const ThreadWorldSettings settings{.delay = {.latency_s = 0.1, .bytes_per_s = 4e4}};
  std::atomic<bool> is_quick{true};
  // The ranks of tp are not those of the world, so these are two groups.
  ThreadWorld(4, settings).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
    const at::Tensor a = at::zeros({1000}), b = at::zeros({1000});  // 4000 B each way: 0.1 s
    Stopwatch watch;
    timespec cpu_before{}, cpu_after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_before);
    Work first = groups.tp->all_reduce(a, ReduceOp::kSum, "a");
    Work second = groups.tp->all_reduce(b, ReduceOp::kSum, "b");
    if (watch.elapsed_s() >= 0.1) is_quick = false;  // issuing blocks
    first.wait();
    EXPECT_GE(watch.elapsed_s(), 0.19);
    if (second.is_done()) is_quick = false;
    second.wait();
    EXPECT_GE(watch.elapsed_s(), 0.38) << "one group moves one thing at a time";
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_after);
    const double cpu_s = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) +
                         1e-9 * static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec);
    EXPECT_LT(cpu_s, 0.1);

    watch.restart();
    Work on_tp = groups.tp->all_reduce(a, ReduceOp::kSum, "a");
    Work on_world = groups.world->all_reduce(b, ReduceOp::kSum, "b");
    on_tp.wait();
    on_world.wait();
    if (watch.elapsed_s() >= 0.38) is_quick = false;  // two groups are two links
  });
  return is_quick;
}

// 0.2 s a collective: two on one group take 0.4 s, on two groups 0.2 s; and the processor is idle meanwhile.
TEST(DelayModel, TakesTimeButNoProcessor) {
  bool is_quick = false;  // once of many: the machine may be busy
  for (int attempt = 0; attempt < 20 && !is_quick; ++attempt) is_quick = takes_no_more_than_the_model();
  EXPECT_TRUE(is_quick);
}

}  // namespace
}  // namespace megalith
