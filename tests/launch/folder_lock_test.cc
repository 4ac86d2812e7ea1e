// One run at a time in a folder. A holder of "another machine" is one whose process no test can look for.
#include "launch/folder_lock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr double kSoon_s = 0.01, kNever_s = 3600;

FolderLockSettings settings_of(const std::string& run_id, const std::string& host) {
  FolderLockSettings settings;
  settings.self = own_holder(run_id, /*meeting=*/"", "1970-01-01T00:00:00.000Z");
  if (host != host_name()) {
    settings.self.host = host;
    settings.self.process = "boot-of-" + host + "/pid:[1] 4711 99";
  }
  settings.beat_s = kSoon_s;
  settings.patience_s = kNever_s;
  return settings;
}

// Writes the lock that a killed run leaves.
void leave_lock(const fs::path& folder, const FolderHolder& holder) {
  fs::create_directories(folder);
  std::ofstream(folder / "lock.json")
      << fmt::format(
             R"({{"run_id": "{}", "host": "{}", "process": "{}", "since": "{}", "meeting": "", "beat": {:>20}}})",
             holder.run_id, holder.host, holder.process, holder.since, 17)
      << "\n";
}

// A process of this machine that has ended: its number has another start by now.
FolderHolder ended_holder() {
  FolderHolder holder = own_holder("dead-1", "", "1970-01-01T00:00:00.000Z");
  holder.process += "9";
  return holder;
}

std::string refusal(const fs::path& folder, const FolderLockSettings& settings) {
  try {
    const FolderLock lock(folder, "save " + folder.string(), settings);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(FolderLock, TheSecondIsToldWhoHoldsItAndTheFolderIsFreeAfterwards) {
  const TemporaryFolder place;
  const fs::path folder = place.path() / "runs" / "a";
  {
    const FolderLock lock(folder, "save a", settings_of("first", host_name()));
    const std::string told = refusal(folder, settings_of("second", host_name()));
    for (const std::string& part : {"run first of host " + host_name(), "process " + std::to_string(::getpid()),
                                    std::string("--wait_for_folder")}) {
      EXPECT_NE(told.find(part), std::string::npos) << told;
    }
    EXPECT_EQ(find_holder(folder)->run_id, "first");
  }
  EXPECT_FALSE(is_there(place.path() / "runs")) << "what was made for the lock is gone with it";
  EXPECT_EQ(refusal(folder, settings_of("second", host_name())), "");
}

TEST(FolderLock, WhatTheRunWroteKeepsTheFolder) {
  const TemporaryFolder place;
  {
    const FolderLock lock(place.path() / "a", "save a", settings_of("first", host_name()));
    write_file_atomic(place.path() / "a" / "file", "mine");
  }
  EXPECT_EQ(names_in(place.path() / "a"), std::vector<std::string>{"file"});
}

TEST(FolderLock, AHolderOfThisMachineThatHasEndedIsSucceededAtOnce) {
  const TemporaryFolder place;
  leave_lock(place.path(), ended_holder());
  FolderLockSettings settings = settings_of("next", host_name());
  std::string note;
  settings.note = [&](const std::string& text) { note += text; };
  settings.before_sleep = [] { FAIL() << "it waited"; };
  const FolderLock lock(place.path(), "save a", settings);
  EXPECT_NE(note.find("taken over from run dead-1"), std::string::npos) << note;
  EXPECT_EQ(names_in(place.path()), std::vector<std::string>{"lock.json"});
}

// Whatever its clock says: the times in and on the file are of 1970, or of a future year.
TEST(FolderLock, AHolderOfAnotherMachineLivesWhileItsNumberMoves) {
  const TemporaryFolder place;
  const FolderLock lock(place.path(), "save a", settings_of("first", "node1"));
  fs::last_write_time(place.path() / "lock.json", fs::file_time_type() + std::chrono::hours(24 * 365 * 100));
  EXPECT_NE(refusal(place.path(), settings_of("second", "node2")).find("run first of host node1"), std::string::npos);
}

TEST(FolderLock, AHolderOfAnotherMachineIsDeadWhenItsNumberStandsStill) {
  for (const char* bytes : {"", "{\"run_id\": \"../../x\"}\n"}) {  // whole, and damaged
    const TemporaryFolder place;
    FolderLockSettings settings = settings_of("second", "node2");
    settings.patience_s = 0.05;
    int num_sleeps = 0;
    settings.before_sleep = [&] { ++num_sleeps; };
    if (*bytes == 0) {
      leave_lock(place.path(), settings_of("first", "node1").self);
      fs::last_write_time(place.path() / "lock.json", fs::file_time_type() + std::chrono::hours(24 * 365 * 100));
    } else {
      write_file_atomic(place.path() / "lock.json", bytes);
    }
    const FolderLock lock(place.path(), "save a", settings);
    EXPECT_GT(num_sleeps, 0);
    EXPECT_EQ(find_holder(place.path())->run_id, "second");
    EXPECT_EQ(names_in(place.path()), std::vector<std::string>{"lock.json"});
  }
}

TEST(FolderLock, OfManyThatFindADeadHolderExactlyOneSucceedsIt) {
  const TemporaryFolder place;
  for (int round = 0; round < 40; ++round) {
    const fs::path folder = place.path() / std::to_string(round);
    leave_lock(folder, ended_holder());
    // In half the rounds one was killed while it took over.
    if (round % 2 == 1) {
      const FolderHolder heir{"heir-1", host_name(), ended_holder().process, "", ""};
      leave_lock(place.path() / "heir", heir);
      fs::rename(place.path() / "heir" / "lock.json", folder / "lock-after-dead-1.json");
    }
    constexpr int kStarters = 6;
    std::vector<std::unique_ptr<FolderLock>> locks(kStarters);
    std::vector<std::thread> threads;
    for (int i = 0; i < kStarters; ++i) {
      threads.emplace_back([&, i] {
        try {
          locks[i] = std::make_unique<FolderLock>(folder, "save a", settings_of(fmt::format("run-{}", i), host_name()));
        } catch (const UserError&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(std::count_if(locks.begin(), locks.end(), [](const auto& lock) { return lock != nullptr; }), 1);
    ASSERT_EQ(names_in(folder), std::vector<std::string>{"lock.json"});
  }
}

TEST(FolderLock, ThoseThatWaitComeOneByOne) {
  const TemporaryFolder place;
  std::atomic<int> num_inside = 0, num_done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        FolderLockSettings settings = settings_of(fmt::format("run-{}-{}", i, round), host_name());
        settings.waits = true;
        const FolderLock lock(place.path(), "save a", settings);
        EXPECT_EQ(++num_inside, 1);
        std::this_thread::yield();
        --num_inside;
        ++num_done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_done, 20);
}

TEST(FolderLock, AWaitThatIsBrokenOffLeavesTheHolderAlone) {
  const TemporaryFolder place;
  const FolderLock lock(place.path(), "save a", settings_of("first", host_name()));
  FolderLockSettings settings = settings_of("second", host_name());
  settings.waits = true;
  settings.before_sleep = [] { throw 3; };
  EXPECT_THROW(FolderLock(place.path(), "save a", settings), int);
  EXPECT_EQ(find_holder(place.path())->run_id, "first");
}

TEST(FolderLock, AHolderThatWasSucceededWhileItStoodStillLearnsIt) {
  const TemporaryFolder place;
  std::atomic<bool> is_lost = false;
  FolderLockSettings settings = settings_of("first", "node1");
  settings.on_lost = [&](const FolderHolder& other) { is_lost = other.run_id == "second"; };
  const FolderLock lock(place.path(), "save a", settings);
  leave_lock(place.path() / "new", settings_of("second", "node2").self);
  fs::rename(place.path() / "new" / "lock.json", place.path() / "lock.json");
  while (!is_lost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace megalith
