// Calls on files that fail. A signal that interrupts one (EINTR) changes nothing; a full disk or a broken one leaves no
// hidden file, and a picture that cannot be written never ends a run.
#include "faults.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/toy_state.h"
#include "core/error.h"
#include "core/file.h"
#include "data/index_array.h"
#include "data/index_cache.h"
#include "data/indexed_writer.h"
#include "metrics/jsonl.h"
#include "metrics/loss_plot.h"
#include "metrics/run_page.h"
#include "metrics/tensorboard.h"
#include "metrics/wandb.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers
namespace fs = std::filesystem;

StepRecord step_of(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 3;
  record.losses = {{"lm loss", 5.0 / static_cast<double>(iteration)}};
  record.elapsed_ms = 100;
  record.tokens = 64;
  return record;
}

void run_through(MetricsSink& sink) {
  for (int64_t i = 1; i <= 3; ++i) {
    sink.on_step(step_of(i));
    sink.on_validation({.iteration = i, .when = "", .losses = {{"lm loss", 1}}});
  }
  sink.on_end();
}

void save_toy(const fs::path& root, int64_t iteration, const SaveSettings& settings = {}, bool is_async = false) {
  Groups groups = Groups::single();
  CapturedLog log;
  ToyState toy({{"model", at::kBFloat16}, {"exp_avg"}});
  toy.state.train.iteration = iteration;
  CheckpointSaver saver(root, settings, is_async, groups, log.log);
  saver.save(toy.state);
  saver.finish();
}

bool has_checkpoint(const fs::path& root) {
  Groups groups = Groups::single();
  CapturedLog log;
  return find_checkpoint(root / "run", std::nullopt, *groups.world, log.log).has_value();
}

struct Writer {
  std::string name;
  std::function<void(const fs::path&)> write;  // into a folder that is there
  std::function<void(const fs::path&)> prepare = [](const fs::path&) {};
  bool can_exchange = true;  // the file system exchanges two folders in one step
  // True if the data that must not be lost is there.
  std::function<bool(const fs::path&)> is_intact = [](const fs::path&) { return true; };
  // Takes out of a file's bytes what differs from run to run (a time of day).
  std::function<std::string(const fs::path& name, std::string)> kept = [](const fs::path&, std::string bytes) {
    return bytes;
  };
};

std::vector<Writer> writers() {
  std::vector<Writer> all;
  all.push_back({.name = "one file", .write = [](const fs::path& root) {
                   write_file_atomic(root / "new/folder/file", "content");
                   EXPECT_EQ(read_file(root / "new/folder/file"), "content");
                 }});
  all.push_back({.name = "a large file over an old one",
                 .write = [](const fs::path& root) { write_file_atomic(root / "file", std::string(3 << 20, 'x')); },
                 .prepare = [](const fs::path& root) { write_file_atomic(root / "file", "old"); }});
  for (const auto& [replaces, can_exchange] : {std::pair{false, true}, std::pair{true, true}, std::pair{true, false}}) {
    all.push_back({.name = replaces ? "a folder over an old one" : "a folder",
                   .write =
                       [](const fs::path& root) {
                         AtomicDirectory folder(root / "folder", /*replace=*/true);
                         make_directories(folder.path() / "inner");
                         write_file_atomic(folder.path() / "inner" / "file", "fresh");
                         folder.commit();
                       },
                   .prepare =
                       [replaces = replaces](const fs::path& root) {
                         if (replaces) write_file_atomic(root / "folder" / "old" / "file", "old");
                       },
                   .can_exchange = can_exchange,
                   .is_intact =
                       [replaces = replaces](const fs::path& root) {
                         const bool is_old = fs::exists(root / "folder/old/file");
                         const bool is_fresh = fs::exists(root / "folder/inner/file");
                         return replaces ? is_old != is_fresh : is_fresh == fs::exists(root / "folder");
                       }});
  }
  for (const bool is_async : {false, true}) {
    all.push_back(
        {.name = is_async ? "a checkpoint beside training" : "a checkpoint, and an old one goes",
         .write = [is_async](
                      const fs::path& root) { save_toy(root / "run", 20, {.retention = {.keep_last = 1}}, is_async); },
         .prepare = [](const fs::path& root) { save_toy(root / "run", 10); },
         .is_intact = has_checkpoint});
  }
  all.push_back({.name = "a checkpoint of the same iteration",
                 .write = [](const fs::path& root) { save_toy(root / "run", 10); },
                 .prepare = [](const fs::path& root) { save_toy(root / "run", 10); },
                 .is_intact = has_checkpoint});
  all.push_back({.name = "a data set", .write = [](const fs::path& root) {
                   IndexedDatasetWriter writer((root / "data/set").string(), TokenType::kUint16);
                   writer.add_sequence(std::vector<int32_t>{1, 2, 3});
                   writer.end_document();
                   writer.finish();
                 }});
  all.push_back({.name = "an index cache", .write = [](const fs::path& root) {
                   CapturedLog log;
                   const auto build = [] { return std::vector{IndexArray::of(std::vector<int32_t>{3, 1, 2})}; };
                   IndexCacheKey key;
                   key.description = "{}", key.megatron_description = "{}", key.array_names = {"order"};
                   const auto arrays = load_or_build_arrays(root / "cache", key, build, log.log);
                   EXPECT_EQ(arrays.at(0).at(2), 2);
                 }});
  all.push_back({.name = "metrics_file",
                 .write =
                     [](const fs::path& root) {
                       CapturedLog log;
                       JsonlSink sink(root / "run.jsonl", log.log, "run");
                       run_through(sink);
                     },
                 .prepare = [](const fs::path& root) { write_file_atomic(root / "run.jsonl", "{}\n{\"unfinished"); },
                 .kept =
                     [](const fs::path&, const std::string& bytes) {
                       return std::regex_replace(bytes, std::regex("\"time\":\"[^\"]*\""), "");
                     }});
  all.push_back({.name = "tensorboard_dir",
                 .write =
                     [](const fs::path& root) {
                       CapturedLog log;
                       LogOptions options;
                       options.tensorboard_dir = (root / "events").string();
                       TensorboardSink sink(options, log.log);
                       run_through(sink);
                     },
                 .kept = [](const fs::path&, const std::string& bytes) { return std::to_string(bytes.size()); }});
  all.push_back({.name = "wandb_project",
                 .write =
                     [](const fs::path& root) {
                       CapturedLog log;
                       TrackedRun run;
                       run.folder = root / "wandb";
                       run.group = "books";
                       run.id = "abcd1234";
                       WandbSink sink(run, {}, log.log);
                       run_through(sink);
                     },
                 .kept =
                     [](const fs::path&, const std::string& bytes) {
                       static const std::regex kRow("samples vs steps");
                       const auto begin = std::sregex_iterator(bytes.begin(), bytes.end(), kRow);
                       return std::to_string(std::distance(begin, std::sregex_iterator()));
                     }});
  return all;
}

// The sinks that draw. Nothing of a picture that cannot be written may end a run.
std::vector<Writer> picture_writers() {
  const auto without_times = [](const fs::path&, const std::string& bytes) {
    const size_t from = bytes.find("id=\"points\">");
    if (from == std::string::npos) return bytes;
    return std::regex_replace(bytes.substr(from), std::regex("\"elapsed_s\":[^,}]*"), "");
  };
  std::vector<Writer> all;
  all.push_back({.name = "page_file",
                 .write =
                     [](const fs::path& root) {
                       CapturedLog log;
                       RunPageSink sink({.path = root / "run.html", .evaluation_every_s = 0, .step_every_s = 0},
                                        log.log);
                       run_through(sink);
                     },
                 .kept = without_times});
  all.push_back({.name = "loss_plot_file", .write = [](const fs::path& root) {
                   CapturedLog log;
                   LossPlotSink sink(root / "loss.svg", "", log.log);
                   run_through(sink);
                 }});
  return all;
}

// Names and bytes of everything below `root`; names that hold a time lose it.
std::map<std::string, std::string> tree_of(const Writer& writer, const fs::path& root) {
  std::map<std::string, std::string> tree;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    std::string name = entry.path().lexically_relative(root).string();
    if (const size_t at = name.find("tfevents"); at != std::string::npos) name.resize(at);
    if (const size_t at = name.find("offline-run-"); at != std::string::npos) name.erase(at + 12, 15);
    tree[name] = entry.is_regular_file() ? writer.kept(entry.path(), read_file(entry.path())) : "folder";
  }
  return tree;
}

// The first name that is not there, or has other bytes, in one of the two.
std::string first_difference(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  const auto [one, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (one != a.end()) return one->first;
  return other != b.end() ? other->first : "";
}

// Once for every call that the writer makes, until a plan strikes none. Returns how many there were.
int for_every_call(const Writer& writer, int error_number, bool is_lasting,
                   const std::function<void(const fs::path& root, const std::exception* thrown)>& check) {
  at::set_num_threads(1);
  for (int number = 0;; ++number) {
    const TemporaryFolder folder;
    const fs::path root = folder.path() / "watched";
    fs::create_directory(root);
    writer.prepare(root);
    std::string call;
    const auto check_after = [&](const std::exception* thrown) {
      if (call.empty()) return;
      SCOPED_TRACE(fmt::format("{}, error {}{}, call {}: {}", writer.name, error_number,
                               is_lasting ? " from then on" : "", number, call));
      check(root, thrown);
    };
    std::optional<Faults> faults;
    faults.emplace(Fault{root, number, error_number, is_lasting, writer.can_exchange});
    try {
      writer.write(root);
      call = faults->call();
      faults.reset();
      check_after(nullptr);
    } catch (const std::exception& error) {
      call = faults->call();
      faults.reset();
      check_after(&error);
    }
    if (!call.empty() && !testing::Test::HasFailure()) continue;
    std::printf("%d calls: %s\n", number, writer.name.c_str());  // summed by tests/proof/proof.py
    return number;
  }
}

void expect_nothing_hidden(const fs::path& root) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path() << " is left behind";
  }
}

TEST(Faults, AnInterruptedCallIsMadeAgain) {
  std::vector<Writer> all = writers();
  for (Writer& writer : picture_writers()) all.push_back(std::move(writer));
  for (const Writer& writer : all) {
    const TemporaryFolder undisturbed;
    writer.prepare(undisturbed.path());
    writer.write(undisturbed.path());
    const auto expected = tree_of(writer, undisturbed.path());
    const int num_calls = for_every_call(writer, EINTR, false, [&](const fs::path& root, const std::exception* thrown) {
      EXPECT_EQ(thrown, nullptr) << thrown->what();
      EXPECT_EQ(first_difference(tree_of(writer, root), expected), "");
    });
    EXPECT_GE(num_calls, 5) << writer.name;  // the fewest: open, write, …, close of a metrics file
  }
}

TEST(Faults, AFullOrBrokenDiskLeavesNothingHiddenAndTheOldIntact) {
  std::vector<Writer> all = writers();
  for (Writer& writer : picture_writers()) all.push_back(std::move(writer));
  for (const Writer& writer : all) {
    for (const auto& [error_number, is_lasting] :
         {std::pair{EDQUOT, true}, std::pair{ENOSPC, true}, std::pair{EIO, false}, std::pair{EIO, true}}) {
      // Without exchanging, a disk that takes no second rename keeps the old folder under the name it was moved to,
      // where the next run finds it (replaced_target).
      if (is_lasting && !writer.can_exchange) continue;
      const int num_calls =
          for_every_call(writer, error_number, is_lasting, [&](const fs::path& root, const std::exception* thrown) {
            EXPECT_TRUE(thrown == nullptr || dynamic_cast<const UserError*>(thrown) != nullptr) << thrown->what();
            expect_nothing_hidden(root);
            EXPECT_TRUE(writer.is_intact(root));
          });
      EXPECT_GE(num_calls, 5) << writer.name;
      if (testing::Test::HasFailure()) return;
    }
  }
}

// From any call of a step on the disk is full: the sink goes on, says so once, and draws again when there is room.
template <typename MakeSink>
void expect_one_warning(const std::string& option, const std::string& file, const MakeSink& make_sink) {
  for (int number = 0;; ++number) {
    const TemporaryFolder folder;
    CapturedLog log;
    const auto sink = make_sink(folder.path(), log.log);
    std::string call;
    {
      const Faults faults({folder.path(), number, EDQUOT, true});
      EXPECT_NO_THROW(run_through(*sink));
      call = faults.call();
    }
    if (call.empty()) {
      EXPECT_GE(number, 5);
      return;
    }
    SCOPED_TRACE(fmt::format("call {}: {}", number, call));
    expect_nothing_hidden(folder.path());
    size_t num_warnings = 0;
    for (size_t at = 0; (at = log.text.find(option, at)) != std::string::npos; ++at) ++num_warnings;
    const bool needs_room = !call.starts_with("open") && !call.starts_with("close") && !call.starts_with("unlink");
    EXPECT_GE(num_warnings, needs_room ? 1u : 0u) << log.text;
    EXPECT_LE(num_warnings, 1u) << log.text;
    run_through(*sink);
    EXPECT_TRUE(contains(read_file(folder.path() / file), "<svg"));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Faults, APageThatCannotBeWrittenCostsOneWarning) {
  expect_one_warning("page_file", "run.html", [](const fs::path& root, Logger& log) {
    return std::make_unique<RunPageSink>(
        RunPageSettings{.path = root / "run.html", .evaluation_every_s = 0, .step_every_s = 0}, log);
  });
}

TEST(Faults, APlotThatCannotBeWrittenCostsOneWarning) {
  expect_one_warning("loss_plot_file", "loss.svg", [](const fs::path& root, Logger& log) {
    return std::make_unique<LossPlotSink>(root / "loss.svg", "", log);
  });
}

}  // namespace
}  // namespace megalith
