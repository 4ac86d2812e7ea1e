// Eras (roll_call.h): ranks as threads, of which one leaves without a word, and comes again. Killed and stopped
// processes are tests/parallel_processes/lost_ranks_test.py.
#include "launch/roll_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launch/c10d_group.h"
#include "support/free_port.h"

namespace megalith {
namespace {

TEST(Era, IsTheSameAfterItsTrip) {
  const Era era{.number = 3, .seats = {0, 2, 5}, .iterations = {7, -1, 8}, .left = {1}, .joined = {2}, .numbers = {}};
  const Era found = era_from_json(to_json(era));
  EXPECT_EQ(found.number, era.number);
  EXPECT_EQ(found.seats, era.seats);
  EXPECT_EQ(found.iterations, era.iterations);
  EXPECT_EQ(found.left, era.left);
  EXPECT_EQ(found.joined, era.joined);
  EXPECT_EQ(found.newest_iteration(), 8);
  EXPECT_EQ(found.giver(), 2);
}

constexpr int kSeats = 3;

// A rank that adds ones over all ranks, era after era, until an era of all seats has begun again; `leaves` after two
// sums.
struct Seat {
  Seat(int seat, int port) : seat(seat), port(port) {}

  void run(bool leaves) {
    RollRules rules;
    rules.choose = [](const std::vector<int>& here) { return here.size() >= 2 ? here : std::vector<int>{}; };
    auto world = std::make_unique<C10dWorld>(Launch{.launcher = Launcher::kTorchrun,
                                                    .rank = seat,
                                                    .world_size = kSeats,
                                                    .local_rank = seat,
                                                    .local_world_size = kSeats,
                                                    .master_address = "127.0.0.1",
                                                    .master_port = port},
                                             at::kCPU, /*timeout_s=*/30, MeetingTerms{}, nullptr,
                                             LossTolerance{.is_on = true, .patience_s = 1});
    Era era{.number = 0, .seats = {0, 1, 2}, .iterations = {}, .left = {}, .joined = {}, .numbers = {}};
    int64_t iteration = world->is_late() ? -1 : 0;
    const auto enter_next = [&] {
      era = world->call_roll({.iteration = iteration, .numbers = iteration >= 0 ? "numbers" : ""}, rules, {});
      iteration = era.newest_iteration();
      eras.push_back(era);
      world = world->next(era);
    };
    if (world->is_late()) enter_next();
    while (true) {
      try {
        std::vector<int> ranks(era.seats.size());
        for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int>(rank);
        const std::shared_ptr<Group> group = world->factory()(ranks, "dp");
        for (int step = 0; true; ++step) {
          const bool asks = seat == 0 && world->has_joiners(rules);
          const bool ends = seat == 0 && era.number > 0 && era.seats.size() == kSeats && step >= 2;
          const at::Tensor sums = at::tensor({1.0, asks ? 1.0 : 0.0, ends ? 1.0 : 0.0});
          group->all_reduce(sums, ReduceOp::kSum, "sums").wait();
          ++iteration;
          EXPECT_EQ(sums[0].item<double>(), static_cast<double>(era.seats.size()));
          world->begin_patience();
          if (leaves && step == 1) return;
          if (sums[2].item<double>() > 0) return world->finish();
          if (sums[1].item<double>() > 0) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      } catch (const CommunicationError&) {
        if (!world->is_lost()) throw;
        EXPECT_NE(world->loss(), "");
      }
      enter_next();
    }
  }

  int seat, port;
  std::vector<Era> eras;
};

TEST(RollCall, RanksGoOnWithoutOneThatLeavesAndWithItsReplacement) {
  const int port = free_port();
  std::vector<Seat> seats;
  for (int seat = 0; seat < kSeats; ++seat) seats.emplace_back(seat, port);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kSeats);
  for (int seat = 0; seat < kSeats; ++seat) {
    threads.emplace_back([&, seat] {
      try {
        seats[static_cast<size_t>(seat)].run(/*leaves=*/seat == 2);
        if (seat == 2) seats[2].run(/*leaves=*/false);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(seat)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const int seat : {0, 1}) {
    const std::vector<Era>& eras = seats[static_cast<size_t>(seat)].eras;
    ASSERT_GE(eras.size(), 1u);
    EXPECT_EQ(eras.back().seats, (std::vector<int>{0, 1, 2}));
    // Alone or together with the replacement's coming: those who made the step that all made.
    EXPECT_GE(eras.front().iterations.at(0), 2);
    EXPECT_EQ(eras.front().numbers, "numbers");
  }
  ASSERT_EQ(seats[2].eras.size(), 1u);
  EXPECT_EQ(seats[2].eras[0].iterations.at(2), -1);
  EXPECT_GE(seats[2].eras[0].newest_iteration(), 2);
}

}  // namespace
}  // namespace megalith
