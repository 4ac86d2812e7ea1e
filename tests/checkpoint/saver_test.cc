// Saving beside training: the bytes of a synchronous save, whatever happens to the parameters meanwhile; and who learns
// of a failure when.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_saver.h"
#include "comm/thread_world.h"
#include "core/file.h"
#include "support/temporary_folder.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers
namespace fs = std::filesystem;

// Name to bytes of every file of a checkpoint.
std::map<std::string, std::string> bytes_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

// Stops the writing thread at its first tensor until it is let on.
struct Gate {
  std::promise<void> opened;
  std::shared_future<void> is_open = opened.get_future().share();
  StepHook hook() {
    return [this](std::string_view step) {
      if (step == "write tensor") is_open.wait();
    };
  }
};

void poll_until_done(CheckpointSaver& saver) {
  for (int i = 0; saver.is_pending() && i < 10000; ++i) {
    saver.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(saver.is_pending());
}

TEST(CheckpointSaver, BytesAreThoseOfASynchronousSaveWhileParametersChange) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const TemporaryFolder expected, folder;
    const Groups groups = Groups::single();
    CapturedLog log;
    ToyState toy(optimizer_keys(dtype));
    const fs::path synchronous = save_checkpoint(expected.path(), toy.state, groups, log.log);
    Gate gate;
    CheckpointSaver saver(folder.path(), {.block_bytes = 64, .before_step = gate.hook()}, true, groups, log.log);
    saver.save(toy.state);
    toy.clear();  // before a byte of a tensor was written
    saver.poll();
    EXPECT_TRUE(saver.is_pending());
    EXPECT_TRUE(list_checkpoints(folder.path()).empty());
    gate.opened.set_value();
    for (int i = 0; i < 50; ++i) {
      for (CheckpointTensor& tensor : toy.state.tensors) tensor.local.add_(1);
    }
    poll_until_done(saver);
    EXPECT_EQ(bytes_of(folder.path() / synchronous.filename()), bytes_of(synchronous));
  }
}

TEST(CheckpointSaver, ASaveThatTakesLongSaysHowFarItIs) {
  const TemporaryFolder folder;
  std::string shown;
  Logger log({.write = [&](std::string_view text) { shown += text; }, .is_terminal = true});
  ToyState toy(optimizer_keys());
  bool has_waited = false;
  const StepHook hook = [&](std::string_view step) {
    // A terminal is told every tenth of a second.
    if (step == "write tensor" && !std::exchange(has_waited, true)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
    }
  };
  save_checkpoint(folder.path(), toy.state, Groups::single(), log, {.before_step = hook});
  EXPECT_NE(shown.find("saving iteration 3: "), std::string::npos) << shown;
  EXPECT_NE(shown.find(" bytes ("), std::string::npos) << shown;
}

TEST(CheckpointSaver, RanksThatHoldPartsWriteWhatTheyWouldSynchronously) {
  const Mesh mesh({.tp = 2, .dp = 2});
  const TemporaryFolder expected, folder;
  ThreadWorld(4).run(mesh, [&](Groups& groups) {
    CapturedLog log;
    ToyState toy(optimizer_keys(), 2, mesh.coordinate(Axis::kTp, groups.rank), 2,
                 mesh.coordinate(Axis::kDp, groups.rank));
    save_checkpoint(expected.path(), toy.state, groups, log.log);
    CheckpointSaver saver(folder.path(), {}, true, groups, log.log);
    saver.save(toy.state);
    toy.clear();
    saver.finish();
  });
  EXPECT_EQ(bytes_of(folder.path() / "iter_0000003"), bytes_of(expected.path() / "iter_0000003"));
}

TEST(CheckpointSaver, TheNextSaveWaitsAndReusesTheCopies) {
  const TemporaryFolder expected, folder;
  const Groups groups = Groups::single();
  CapturedLog log;
  ToyState toy(optimizer_keys());
  CheckpointSaver saver(folder.path(), {.retention = {.keep_last = 9}}, true, groups, log.log);
  for (const int64_t iteration : {4, 5, 6}) {
    toy.state.train.iteration = iteration;
    saver.save(toy.state);
    for (CheckpointTensor& tensor : toy.state.tensors) tensor.local.mul_(-1);
  }
  saver.finish();
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{4, 5, 6}));
  ToyState again(optimizer_keys());
  for (const int64_t iteration : {4, 5, 6}) {
    load_checkpoint(folder.path() / checkpoint_folder_name(iteration), again.state, groups);
    EXPECT_EQ(again.first_difference(), "") << iteration;
    for (at::Tensor& value : again.expected) value = -value;
  }
}

TEST(CheckpointSaver, AFailureIsReportedAtTheNextBoundaryOnAllRanks) {
  const TemporaryFolder folder;
  std::atomic<int> num_reports = 0;
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    CapturedLog log;
    ToyState toy(optimizer_keys(), 1, 0, 2, groups.rank);
    const StepHook hook = [&](std::string_view step) {
      if (step == "write tensor" && groups.rank == 1) throw UserError("the disk is full", "free space");
    };
    CheckpointSaver saver(folder.path(), {.before_step = hook}, true, groups, log.log);
    saver.save(toy.state);
    const std::string message = message_of([&] { poll_until_done(saver); });
    num_reports += message.find("the disk is full\nfree space") != std::string::npos;
  });
  EXPECT_EQ(num_reports, 2);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

TEST(CheckpointSaver, WhatWasNotFinishedIsDropped) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  CapturedLog log;
  ToyState toy(optimizer_keys());
  {
    CheckpointSaver saver(folder.path(), {}, true, groups, log.log);
    saver.save(toy.state);
  }
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  CheckpointSaver(folder.path(), {}, false, groups, log.log).save(toy.state);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3}));
}

// A folder that some rank does not see is refused by all, and nothing is left in it.
TEST(CheckpointFolder, IsSharedByAllRanksOrRefused) {
  const TemporaryFolder folder;
  for (const int blind : {-1, 0, 1, 2}) {
    const fs::path root = folder.path() / "checkpoints";
    std::atomic<int> num_refused{0};
    ThreadWorld(3).run(Mesh({.dp = 3}), [&](Groups& groups) {
      const std::string message = message_of([&] {
        check_shared_folder(root, *groups.world,
                            [&](const fs::path& probe) { return groups.rank != blind && fs::exists(probe); });
      });
      num_refused += message.find("is not the folder that rank 0 sees") != std::string::npos;
    });
    EXPECT_EQ(num_refused, blind < 0 ? 0 : 3) << blind;
    EXPECT_FALSE(fs::exists(root));
  }
}

}  // namespace
}  // namespace megalith
