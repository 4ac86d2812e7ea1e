// A save that is stopped before or after any change on disk, by a kill or a power cut: the old or the new checkpoint is
// found and loaded, bit for bit, and the next save succeeds and leaves no other files.
#include "crash_points.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/resume.h"
#include "checkpoint/toy_state.h"
#include "comm/thread_world.h"
#include "core/file.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers
namespace fs = std::filesystem;

// Iteration and mark of a checkpoint. Two checkpoints of one iteration differ in their mark, which is added to every
// element: whole numbers, exact in every dtype.
struct Saved {
  int64_t iteration = -1, mark = 0;  // -1: none
  auto operator<=>(const Saved&) const = default;
};
constexpr Saved kNothingSaved;

std::ostream& operator<<(std::ostream& out, const Saved& saved) {
  return out << "iteration " << saved.iteration << " mark " << saved.mark;
}

void add_mark(ToyState& toy, int64_t mark) {
  for (CheckpointTensor& tensor : toy.state.tensors) {
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
      view.tensor.add_(static_cast<double>(mark));
    }
  }
}

ToyState state_of(const Saved& saved, const std::vector<ToyKey>& keys, const Mesh& mesh, int rank) {
  ToyState toy(keys, mesh.size(Axis::kTp), mesh.coordinate(Axis::kTp, rank));
  toy.state.train.iteration = saved.iteration;
  toy.state.train.consumed_train_samples = saved.mark;
  add_mark(toy, saved.mark);
  return toy;
}

struct Training {
  fs::path root;
  int tp = 1;
  std::vector<ToyKey> keys = {{"model"}};
  bool is_async = false;
  SaveSettings settings = {};

  void save(const Saved& saved) const {
    const Mesh mesh({.tp = tp});
    const auto save_as = [&](Groups& groups) {
      CapturedLog log;
      ToyState toy = state_of(saved, keys, mesh, groups.rank);
      CheckpointSaver saver(root, settings, is_async, groups, log.log);
      saver.save(toy.state);
      toy.clear();
      saver.finish();
    };
    if (tp > 1) return ThreadWorld(tp).run(mesh, save_as);
    Groups groups = Groups::single();
    save_as(groups);
  }

  // Result of a resume in one rank, however many saved.
  Saved load(std::string* said = nullptr) const {
    Groups groups = Groups::single();
    CapturedLog log;
    ToyState toy = state_of(kNothingSaved, keys, groups.mesh, 0);
    toy.clear();
    const auto resumed = resume({.load = root.string()}, toy.state, groups, log.log);
    if (said != nullptr) *said = log.text;
    if (!resumed) return kNothingSaved;
    const Saved found{toy.state.train.iteration, toy.state.train.consumed_train_samples};
    add_mark(toy, -found.mark);
    EXPECT_EQ(toy.first_difference(), "") << found;
    return found;
  }
};

struct Case {
  std::string name;
  Training run;
  std::function<void(const Training&)> prepare;  // the folder before the save
  Saved old, fresh;                              // found before and after it
  bool can_exchange = true;
  int fewest_changes = 25;
};

struct Variant {
  Loss loss;
  bool is_after;
  int seed = 0;
};
// A loss right after a change equals one right before the next, so losses are tried only after each change.
const Variant kVariants[] = {{Loss::kNothing, false},
                             {Loss::kNothing, true},
                             {Loss::kUnsyncedBytes, true},
                             {Loss::kZeroedBytes, true},
                             {Loss::kUnsyncedNames, true},
                             {Loss::kEverythingUnsynced, true},
                             {Loss::kSomethingUnsynced, true, 1},
                             {Loss::kSomethingUnsynced, true, 2}};

void expect_clean(const fs::path& root) {
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == kPointerFile || parse_checkpoint_folder_name(name)) << name << " is left behind";
  }
}

// Every crash point of one save in one variant: what was found, by its number.
void crash_everywhere(const fs::path& watched, const Case& tested, const Variant& variant) {
  const fs::path start = watched.parent_path() / "start";
  std::set<Saved> seen;
  for (int number = 0;; ++number) {
    fs::remove_all(watched);
    fs::copy(start, watched, fs::copy_options::recursive);
    const CrashPoint point{.root = watched,
                           .number = number,
                           .is_after = variant.is_after,
                           .loss = variant.loss,
                           .seed = variant.seed,
                           .can_exchange = tested.can_exchange};
    const Crash crash = crash_at(point, [&] { tested.run.save(tested.fresh); });
    ASSERT_EQ(crash.failure, "");
    SCOPED_TRACE(fmt::format("{}, loss {} seed {}, {} change {}: {}", tested.name, static_cast<int>(variant.loss),
                             variant.seed, variant.is_after ? "after" : "before", number, crash.change));
    std::string said;
    const Saved found = tested.run.load(&said);
    seen.insert(found);
    // A save that returned is durable.
    EXPECT_TRUE(found == tested.fresh || (found == tested.old && !crash.is_complete)) << found << "\n" << said;
    const Saved next{std::max<int64_t>(found.iteration, 0) + 10, 5};
    const WithoutFlushes quick;
    tested.run.save(next);
    EXPECT_EQ(tested.run.load(), next);
    expect_clean(tested.run.root);
    if (testing::Test::HasFailure()) return;
    if (!crash.is_complete) continue;
    EXPECT_GE(number, tested.fewest_changes);
    EXPECT_EQ(seen, (std::set<Saved>{tested.old, tested.fresh}));
    std::printf("%d points: %s\n", number, tested.name.c_str());  // summed by tests/proof/proof.py
    return;
  }
}

void crash_in_every_way(Case tested) {
  at::set_num_threads(1);
  // In memory where that can be: thousands of saves and copies follow.
  if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
  const TemporaryFolder folder;
  const fs::path watched = folder.path() / "watched", start = folder.path() / "start";
  fs::create_directory(watched);
  tested.run.root = watched / tested.run.root;
  {
    const WithoutFlushes quick;
    tested.prepare(tested.run);
  }
  EXPECT_EQ(tested.run.load(), tested.old);
  fs::copy(watched, start, fs::copy_options::recursive);
  for (const Variant& variant : kVariants) {
    crash_everywhere(watched, tested, variant);
    if (testing::Test::HasFailure()) return;
  }
}

void damage(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomic(file, bytes);
}

TEST(CrashPoints, OverAnOlderCheckpoint) {
  crash_in_every_way({.name = "over an older one",
                      .run = {.root = "run", .keys = {{"model", at::kBFloat16}, {"exp_avg"}}},
                      .prepare =
                          [](const Training& run) {
                            run.save({10, 1});
                          },
                      .old = {10, 1},
                      .fresh = {20, 2},
                      .fewest_changes = 40});
}

TEST(CrashPoints, TheFirstCheckpoint) {
  crash_in_every_way({.name = "the first",
                      .run = {.root = "new/folder/run"},
                      .prepare = [](const Training&) {},
                      .old = kNothingSaved,
                      .fresh = {20, 2}});
}

TEST(CrashPoints, WithoutAPointer) {
  crash_in_every_way({.name = "no pointer",
                      .run = {.root = "run"},
                      .prepare =
                          [](const Training& run) {
                            run.save({5, 4});
                            run.save({10, 1});
                            fs::remove(run.root / kPointerFile);
                          },
                      .old = {10, 1},
                      .fresh = {20, 2}});
}

TEST(CrashPoints, InPlaceOfADamagedOneOfTheSameIteration) {
  for (const bool can_exchange : {true, false}) {
    crash_in_every_way({.name = "over a damaged one",
                        .run = {.root = "run"},
                        .prepare =
                            [](const Training& run) {
                              run.save({10, 1});
                              run.save({20, 3});
                              damage(run.root / checkpoint_folder_name(20) / "model.safetensors");
                            },
                        .old = {10, 1},
                        .fresh = {20, 2},
                        .can_exchange = can_exchange});
  }
}

TEST(CrashPoints, InPlaceOfAnIntactOneOfTheSameIteration) {
  for (const bool can_exchange : {true, false}) {
    crash_in_every_way({.name = "over an intact one",
                        .run = {.root = "run"},
                        .prepare =
                            [](const Training& run) {
                              run.save({20, 1});
                            },
                        .old = {20, 1},
                        .fresh = {20, 2},
                        .can_exchange = can_exchange});
  }
}

TEST(CrashPoints, WhileOldOnesAreDeleted) {
  crash_in_every_way({.name = "retention",
                      .run = {.root = "run", .settings = {.retention = {.keep_last = 1}}},
                      .prepare =
                          [](const Training& run) {
                            Training keeping = run;
                            keeping.settings = {};
                            keeping.save({5, 3});
                            keeping.save({10, 1});
                          },
                      .old = {10, 1},
                      .fresh = {20, 2},
                      .fewest_changes = 35});
}

TEST(CrashPoints, WhileWhatAKilledRunLeftIsRemoved) {
  crash_in_every_way({.name = "leftovers",
                      .run = {.root = "run"},
                      .prepare =
                          [](const Training& run) {
                            run.save({10, 1});
                            run.save({20, 3});
                            fs::rename(run.root / checkpoint_folder_name(20), run.root / ".iter_0000020.tmp-1-a-b");
                            write_pointer(run.root, 10);
                            write_file_atomic(run.root / fmt::format(".{}.tmp-1-a-b", kPointerFile), "2");
                          },
                      .old = {10, 1},
                      .fresh = {20, 2}});
}

TEST(CrashPoints, BesideTraining) {
  crash_in_every_way({.name = "async_save",
                      .run = {.root = "run", .is_async = true, .settings = {.retention = {.keep_last = 1}}},
                      .prepare =
                          [](const Training& run) {
                            run.save({10, 1});
                          },
                      .old = {10, 1},
                      .fresh = {20, 2}});
}

TEST(CrashPoints, OfTwoRanks) {
  crash_in_every_way({.name = "two ranks",
                      .run = {.root = "run", .tp = 2},
                      .prepare =
                          [](const Training& run) {
                            run.save({10, 1});
                          },
                      .old = {10, 1},
                      .fresh = {20, 2}});
}

// The tests above see with these eyes.
TEST(CrashPoints, WhatWasNotFlushedIsLost) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "watched", file = root / "file";
  const auto left = [&](bool syncs_file, bool syncs_folder, Loss loss) {
    fs::remove_all(root);
    fs::create_directory(root);
    const Crash crash = crash_at({.root = root, .number = 1000, .loss = loss}, [&] {
      const int fd = ::open(file.c_str(), O_CREAT | O_WRONLY, 0644);
      EXPECT_EQ(::write(fd, "abc", 3), 3);
      if (syncs_file) ::fsync(fd);
      ::close(fd);
      if (syncs_folder) sync_path(root);
    });
    EXPECT_EQ(crash.failure, "");
    EXPECT_TRUE(crash.is_complete);
    return fs::exists(file) ? read_file(file) : std::string("gone");
  };
  EXPECT_EQ(left(false, false, Loss::kNothing), "abc");
  EXPECT_EQ(left(false, false, Loss::kUnsyncedBytes), "");
  EXPECT_EQ(left(false, false, Loss::kZeroedBytes), std::string(3, '\0'));
  EXPECT_EQ(left(false, false, Loss::kUnsyncedNames), "gone");
  EXPECT_EQ(left(false, true, Loss::kUnsyncedNames), "abc");
  EXPECT_EQ(left(false, true, Loss::kEverythingUnsynced), "");
  EXPECT_EQ(left(true, false, Loss::kEverythingUnsynced), "gone");
  EXPECT_EQ(left(true, true, Loss::kEverythingUnsynced), "abc");
}

TEST(CrashPoints, NoChangeGoesUnseen) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "watched";
  fs::create_directories(root / "a" / "b");
  std::vector<std::string> changes;
  for (int number = 0;; ++number) {
    const Crash crash = crash_at({.root = root, .number = number}, [&] {
      fs::create_directory(root / "c");
      fs::rename(root / "c", root / "d");
      fs::remove(root / "d");
      fs::remove_all(root / "a");
      fs::create_directories(root / "a" / "b");
    });
    ASSERT_EQ(crash.failure, "");
    if (crash.is_complete) break;
    changes.push_back(crash.change.substr(crash.change.find(' ') + 1));  // by which function is the library's choice
    fs::remove_all(root);
    fs::create_directories(root / "a" / "b");
  }
  EXPECT_EQ(changes, (std::vector<std::string>{"c", "d", "d", "a/b", "a", "a", "a/b"}));
  const Crash missed = crash_at({.root = root, .number = 1000}, [&] { folder.write("watched/x", "1"); });
  EXPECT_TRUE(contains(missed.failure, "not seen"));
  EXPECT_TRUE(contains(missed.failure, (root / "x").string()));
}

}  // namespace
}  // namespace megalith
