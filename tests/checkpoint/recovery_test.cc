// Checkpoints found after damage, kills and retention.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/resume.h"
#include "core/error.h"
#include "core/file.h"
#include "support/temporary_folder.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers
namespace fs = std::filesystem;

// A run in one folder whose weights tell the iteration.
struct Training {
  explicit Training(fs::path root) : root(std::move(root)) {}

  void save(int64_t iteration, const SaveSettings& settings = {}) {
    ToyState toy({{"model"}, {"exp_avg"}});
    toy.state.train.iteration = iteration;
    for (CheckpointTensor& tensor : toy.state.tensors) tensor.local.fill_(static_cast<double>(iteration));
    save_checkpoint(root, toy.state, groups, log.log, settings);
  }
  fs::path folder(int64_t iteration) const { return root / checkpoint_folder_name(iteration); }

  // The iteration that a resume gives, after checking that the weights are that iteration's; -1 for a fresh start.
  int64_t resumed(CheckpointOptions options = {}) {
    ToyState toy({{"model"}, {"exp_avg"}});
    options.load = root.string();
    toy.clear();
    log.text.clear();
    const auto result = resume(options, toy.state, groups, log.log);
    if (!result) return -1;
    const int64_t iteration = toy.state.train.iteration;
    for (const CheckpointTensor& tensor : toy.state.tensors) {
      for (const PieceView& view : piece_views(*tensor.placement, tensor.local)) {
        EXPECT_TRUE(view.tensor.eq(static_cast<double>(iteration)).all().item<bool>()) << view.piece.name;
      }
    }
    return iteration;
  }

  fs::path root;
  Groups groups = Groups::single();
  CapturedLog log;
};

// Unlike what is tested, without waiting for the disk.
void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void flip_byte(const fs::path& path, int64_t at) {
  std::string bytes = read_file(path);
  bytes[static_cast<size_t>(at)] = static_cast<char>(bytes[static_cast<size_t>(at)] ^ 0x10);
  overwrite(path, bytes);
}

TEST(CheckpointFolder, NamesAreMegatrons) {
  EXPECT_EQ(checkpoint_folder_name(100), "iter_0000100");
  EXPECT_EQ(checkpoint_folder_name(123456789), "iter_123456789");
  EXPECT_EQ(parse_checkpoint_folder_name("iter_0000100"), 100);
  EXPECT_EQ(parse_checkpoint_folder_name("iter_123456789"), 123456789);
  for (const char* bad :
       {"iter_100", "iter_00000100", "iter_", "iter_-000001", "iter_0000100x", "iter_99999999999999999999", "x"}) {
    EXPECT_FALSE(parse_checkpoint_folder_name(bad).has_value()) << bad;
  }
}

TEST(Resume, WithoutCheckpointStartsAfreshOrRefuses) {
  const TemporaryFolder folder;
  Training run(folder.path() / "absent");
  EXPECT_EQ(run.resumed(), -1);
  EXPECT_TRUE(contains(run.log.text, "holds no checkpoint")) << run.log.text;
  EXPECT_TRUE(contains(run.log.text, "STARTING AFRESH")) << run.log.text;
  EXPECT_TRUE(
      contains(message_of([&] { run.resumed({.exit_on_missing_checkpoint = true}); }), "(load) holds no checkpoint"));
}

TEST(Resume, PointerIsAdvice) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  EXPECT_EQ(run.resumed(), 20);
  EXPECT_TRUE(contains(run.log.text, "loaded weights and optimizer"));
  EXPECT_EQ(run.log.text.find("taking"), std::string::npos);

  const std::vector<std::pair<std::optional<std::string>, std::string>> cases = {{std::nullopt, "is missing"},
                                                                                 {"", "is empty"},
                                                                                 {"\n", "is empty"},
                                                                                 {"abc", "holds \"abc\""},
                                                                                 {"-5", "holds \"-5\""},
                                                                                 {"99999999999999999999", "holds"},
                                                                                 {std::string("\0\xff", 2), "holds"},
                                                                                 {"9223372036854775807", "says 9"},
                                                                                 {std::string(1 << 20, '1'), "holds"},
                                                                                 {"7", "says 7"}};
  for (const auto& [content, words] : cases) {
    fs::remove(run.root / kPointerFile);
    if (content) folder.write(kPointerFile, *content);
    EXPECT_EQ(run.resumed(), 20);
    EXPECT_TRUE(contains(run.log.text, words));
    EXPECT_TRUE(contains(run.log.text, "iteration 20"));
  }
  fs::remove(run.root / kPointerFile);
  fs::create_directory(run.root / kPointerFile);
  EXPECT_EQ(run.resumed(), 20);
  EXPECT_TRUE(contains(run.log.text, "cannot be read"));
  fs::remove(run.root / kPointerFile);
  fs::create_symlink(kPointerFile, run.root / kPointerFile);
  EXPECT_EQ(run.resumed(), 20);
  EXPECT_TRUE(contains(run.log.text, "cannot be read"));
}

// If the checkpoint that the pointer names is damaged in any way, the newest intact one is taken, older or newer.
TEST(Resume, PointerToADamagedCheckpointIsPassedOver) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> kinds = {
      {"does not fit",
       [](const fs::path& step) { flip_byte(step / "model.safetensors", file_bytes(step / "model.safetensors") - 1); }},
      {"model.safetensors", [](const fs::path& step) { fs::resize_file(step / "model.safetensors", 200); }},
      {"model.safetensors", [](const fs::path& step) { fs::resize_file(step / "model.safetensors", 0); }},
      {"exp_avg.safetensors is missing", [](const fs::path& step) { fs::remove(step / "exp_avg.safetensors"); }},
      {kManifestFile, [](const fs::path& step) { overwrite(step / kManifestFile, "{\"format\": "); }},
      {kManifestFile, [](const fs::path& step) { overwrite(step / kManifestFile, ""); }},
      {kManifestFile, [](const fs::path& step) { fs::remove(step / kManifestFile); }},
      {kManifestFile,
       [](const fs::path& step) {
         fs::remove_all(step);
         fs::create_directory(step);
       }},
  };
  for (const auto& [words, damage] : kinds) {
    for (const bool has_newer : {false, true}) {
      const TemporaryFolder folder;
      Training run(folder.path());
      run.save(10);
      run.save(20);
      if (has_newer) run.save(30);
      damage(run.folder(20));
      write_pointer(run.root, 20);
      EXPECT_EQ(run.resumed(), has_newer ? 30 : 10) << words;
      EXPECT_TRUE(contains(run.log.text, fmt::format("says 20: taking iteration {}, the newest intact checkpoint",
                                                     has_newer ? 30 : 10)));
      if (!has_newer) {
        EXPECT_TRUE(contains(run.log.text, "checkpoint " + run.folder(20).string() + " is not intact: "));
        EXPECT_TRUE(contains(run.log.text, words));
      }
      run.save(40);
      EXPECT_EQ(run.resumed(), 40);
    }
  }
}

// On a file system that cannot exchange two folders, a kill between the two renames leaves the replaced one hidden.
TEST(Resume, ACheckpointThatWasMovedAsideIsFoundAndPutBack) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  const fs::path aside = run.root / ".iter_0000020.tmp-1-a-b.old", half = run.root / ".iter_0000020.tmp-1-a-b";
  fs::rename(run.folder(20), aside);
  fs::create_directory(half);
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(run.resumed(), 20);
  EXPECT_TRUE(contains(run.log.text, aside.string()));
  EXPECT_EQ(run.resumed({.ckpt_step = 20}), 20);
  run.save(30);
  EXPECT_TRUE(contains(run.log.text, "put the checkpoint of iteration 20 back"));
  EXPECT_TRUE(fs::exists(run.folder(20)));
  EXPECT_FALSE(fs::exists(aside) || fs::exists(half));
  EXPECT_EQ(run.resumed({.ckpt_step = 20}), 20);
  // Beside its successor it is a leftover.
  fs::copy(run.folder(20), aside, fs::copy_options::recursive);
  run.save(40);
  EXPECT_FALSE(fs::exists(aside));
}

TEST(Resume, AKillBeforeThePointerMovedLosesNothing) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  run.save(30);
  folder.write(kPointerFile, "10\n");  // as if both moves had been lost
  EXPECT_EQ(run.resumed(), 30);
  EXPECT_TRUE(contains(run.log.text, "says 10: taking iteration 30"));
}

TEST(Resume, ARunThatWentBackIsNotConfusedWithWhatItLeft) {
  const TemporaryFolder folder;
  Training run(folder.path());
  for (const int64_t iteration : {10, 20, 30}) run.save(iteration);
  EXPECT_EQ(run.resumed({.ckpt_step = 10}), 10);
  run.save(15);
  EXPECT_EQ(run.resumed(), 15);
}

TEST(Resume, CkptStepTakesThatOneAlone) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  EXPECT_EQ(run.resumed({.ckpt_step = 10}), 10);
  EXPECT_TRUE(contains(message_of([&] { run.resumed({.ckpt_step = 15}); }),
                       "has no checkpoint of iteration 15 (ckpt_step)\nit has 10, 20"));
  flip_byte(run.folder(10) / "model.safetensors", file_bytes(run.folder(10) / "model.safetensors") - 1);
  EXPECT_TRUE(contains(message_of([&] { run.resumed({.ckpt_step = 10}); }), "no intact checkpoint of iteration 10"));
}

TEST(Resume, OneCheckpointsFolderIsTakenToo) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  Training one(run.folder(10));
  EXPECT_EQ(one.resumed(), 10);
}

TEST(Resume, FinetuneTakesWeightsAlone) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  for (const bool is_pretrained : {false, true}) {
    ToyState toy({{"model"}, {"exp_avg"}});
    toy.clear();
    toy.state.train.seed = 7;
    CheckpointOptions options;
    options.finetune = !is_pretrained;
    (is_pretrained ? options.pretrained_checkpoint : options.load) = run.root.string();
    if (is_pretrained) options.load = (folder.path() / "empty").string();
    const auto result = resume(options, toy.state, run.groups, run.log.log);
    ASSERT_TRUE(result.has_value());
    EXPECT_TRUE(result->is_finetune);
    EXPECT_EQ(toy.state.train.iteration, 0);
    EXPECT_EQ(toy.state.train.seed, 7);
    EXPECT_TRUE(toy.state.tensors[0].local.eq(10).all().item<bool>());
    EXPECT_TRUE(toy.state.tensors[6].local.eq(-99).all().item<bool>());
  }
}

TEST(Resume, TellsHowTheConfigurationDiffers) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  ToyState toy({{"model"}});
  toy.state.configuration[0].second = "0.5";
  const auto result = resume({.load = run.root.string()}, toy.state, run.groups, run.log.log);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->differences, (std::vector<ConfigurationDifference>{{"lr", "0.0001", "0.5"}}));
}

TEST(Damage, FallsBackToThePreviousAndNamesTensorAndFile) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  const fs::path file = run.folder(20) / "exp_avg.safetensors";
  const SafetensorsFile opened(file);
  const int64_t at = opened.find("layers.0.up_proj.weight")->offset + 9;
  flip_byte(file, at);
  EXPECT_EQ(run.resumed(), 10);
  EXPECT_TRUE(
      contains(run.log.text, "layers.0.up_proj.weight in " + file.string() + " is damaged: its checksum does not fit"));
  EXPECT_TRUE(contains(run.log.text, "says 20: taking iteration 10"));
  flip_byte(run.folder(10) / kManifestFile, 100);
  const std::string message = message_of([&] { run.resumed(); });
  EXPECT_TRUE(contains(message, "no intact checkpoint in " + run.root.string()));
  EXPECT_TRUE(contains(message, "layers.0.up_proj.weight"));
  EXPECT_TRUE(contains(message, kManifestFile));
}

// Any single changed byte, in any file, is found; so is any truncation. Never anything but a refusal.
TEST(Damage, EveryFlippedByteAndEveryTruncationIsFound) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  std::mt19937 random(5);
  for (const char* name : {"model.safetensors", "exp_avg.safetensors", kManifestFile}) {
    const fs::path file = run.folder(10) / name;
    const std::string good = read_file(file);
    for (int i = 0; i < 60; ++i) {
      const auto at = static_cast<int64_t>(random() % good.size());
      flip_byte(file, at);
      // A changed blank between JSON tokens may leave the same document; every other change is a fault.
      const bool is_blank = good[static_cast<size_t>(at)] == ' ' || good[static_cast<size_t>(at)] == '\n';
      const bool is_found = !verify_checkpoint(run.folder(10), *run.groups.world).empty();
      EXPECT_TRUE(is_found || is_blank) << name << " byte " << at;
      overwrite(file, good.substr(0, static_cast<size_t>(at)));
      EXPECT_FALSE(verify_checkpoint(run.folder(10), *run.groups.world).empty()) << name << " cut at " << at;
      overwrite(file, good);
    }
    EXPECT_TRUE(verify_checkpoint(run.folder(10), *run.groups.world).empty());
    fs::remove(file);
    EXPECT_FALSE(verify_checkpoint(run.folder(10), *run.groups.world).empty());
    overwrite(file, good);
  }
}

// A document that someone edited and signed again: still nothing but a refusal.
TEST(Damage, ManifestThatLiesIsRefused) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  const Manifest good = load_manifest(run.folder(10));
  const auto refused = [&](const std::function<void(Manifest&)>& edit) {
    Manifest manifest = good;
    edit(manifest);
    overwrite(run.folder(10) / kManifestFile, manifest_text(manifest));
    return !verify_checkpoint(run.folder(10), *run.groups.world).empty();
  };
  EXPECT_FALSE(refused([](Manifest&) {}));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].file = "../x"; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].file = "absent"; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].shape = {1, 1}; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].box.offset[0] = -1; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].box.offset[0] = INT64_MAX; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].shape = {INT64_MAX, INT64_MAX}; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].dtype = SafetensorsDtype::kF64; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.chunks[0].name = "other"; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.train.iteration = -1; }));
}

// Ends the process before the k-th change on disk, for every k, as a kill would: without any clean-up.
// Returns in how many places it stopped.
int stop_everywhere(const std::function<void(const StepHook&)>& save, const std::function<void(int)>& check) {
  for (int k = 0;; ++k) {
    const pid_t child = ::fork();
    if (child == 0) {
      int count = 0;
      save([&](std::string_view) {
        if (count++ == k) ::_exit(77);
      });
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    check(k);
    if (WEXITSTATUS(status) == 0) return k;
    EXPECT_EQ(WEXITSTATUS(status), 77);
  }
}

TEST(Crash, EveryStopLeavesTheOldOrTheNewCheckpoint) {
  const TemporaryFolder folder;
  Training run(folder.path() / "run");
  run.save(10);
  fs::copy(run.root, folder.path() / "start", fs::copy_options::recursive);
  std::set<int64_t> seen;
  const int num_stops =
      stop_everywhere([&](const StepHook& hook) { run.save(20, {.retention = {.keep_last = 1}, .before_step = hook}); },
                      [&](int k) {
                        const int64_t iteration = run.resumed();
                        EXPECT_TRUE(iteration == 10 || iteration == 20) << "stopped before change " << k;
                        seen.insert(iteration);
                        // The next attempt starts from the same state.
                        fs::remove_all(run.root);
                        fs::copy(folder.path() / "start", run.root, fs::copy_options::recursive);
                      });
  EXPECT_GT(num_stops, 20);
  EXPECT_EQ(seen, (std::set<int64_t>{10, 20}));
}

TEST(Crash, ReplacingACheckpointNeverLeavesNone) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  stop_everywhere([&](const StepHook& hook) { run.save(10, {.before_step = hook}); },
                  [&](int) { EXPECT_EQ(run.resumed(), 10); });
}

TEST(Crash, TheFirstCheckpointIsThereOrNot) {
  const TemporaryFolder folder;
  Training run(folder.path() / "new");
  std::set<int64_t> seen;
  stop_everywhere([&](const StepHook& hook) { run.save(10, {.before_step = hook}); },
                  [&](int) {
                    seen.insert(run.resumed());
                    fs::remove_all(run.root);
                  });
  EXPECT_EQ(seen, (std::set<int64_t>{-1, 10}));
}

TEST(Crash, LeftoversGoWithTheNextSave) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  const pid_t child = ::fork();
  if (child == 0) {
    run.save(20, {.before_step = [](std::string_view step) {
               if (step == "write manifest") ::_exit(77);
             }});
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  const auto count = [&] { return std::distance(fs::directory_iterator(run.root), fs::directory_iterator()); };
  EXPECT_EQ(count(), 3);  // a checkpoint, the pointer, what was left
  run.save(30);
  EXPECT_EQ(count(), 3);  // two checkpoints and the pointer
  EXPECT_TRUE(contains(run.log.text, "left by a run that was stopped while it saved"));
}

TEST(Retention, KeepLastKeepsTheNewestAndTheMultiples) {
  const TemporaryFolder folder;
  Training run(folder.path());
  for (int64_t iteration = 10; iteration <= 70; iteration += 10) {
    run.save(iteration, {.retention = {.keep_last = 2, .retain_interval = 30}});
  }
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{30, 60, 70}));
  run.save(80, {.retention = {.keep_last = 1}});
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{80}));
}

TEST(Retention, RetainIntervalAloneDeletesOnlyThePrevious) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  run.save(20);
  run.save(30, {.retention = {.retain_interval = 40}});
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{10, 30}));  // 10 is not this run's to judge
  run.save(40, {.retention = {.retain_interval = 40}});
  run.save(50, {.retention = {.retain_interval = 40}});
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{10, 40, 50}));
}

TEST(Retention, LinksAndNewerCheckpointsStay) {
  const TemporaryFolder folder;
  Training run(folder.path());
  run.save(10);
  fs::rename(run.folder(10), run.root / "elsewhere");
  fs::create_directory_symlink(run.root / "elsewhere", run.folder(10));
  run.save(50);
  EXPECT_EQ(run.resumed({.ckpt_step = 10}), 10);
  run.save(20, {.retention = {.keep_last = 1}});
  EXPECT_EQ(list_checkpoints(run.root), (std::vector<int64_t>{10, 20, 50}));
}

TEST(CheckpointOptions, RulesNameTheOptions) {
  CheckpointOptions options;
  EXPECT_TRUE(check_checkpoint_options(options).empty());
  options.save = "x";
  options.save_interval = 10;
  options.save_retain_interval = 15;
  ASSERT_EQ(check_checkpoint_options(options).size(), 1u);
  EXPECT_TRUE(contains(check_checkpoint_options(options)[0].message(),
                       "save_retain_interval 15 is not a multiple of save_interval 10"));
  EXPECT_TRUE(options.is_save_due(20));
  EXPECT_FALSE(options.is_save_due(21));
  // Presets and scripts give these whether or not there is a folder.
  CheckpointOptions preset{
      .save_interval = 1, .keep_last = 1, .save_retain_interval = 1, .no_save_optim = true, .finetune = true};
  EXPECT_TRUE(check_checkpoint_options(preset).empty());
  EXPECT_FALSE(preset.is_save_due(1));
  const CheckpointOptions without_load{.ckpt_step = 1, .exit_on_missing_checkpoint = true};
  EXPECT_EQ(check_checkpoint_options(without_load).size(), 1u);  // presets always ask for the second
  const CheckpointOptions two_sources{.pretrained_checkpoint = "a", .load_hf = "b"};
  EXPECT_EQ(check_checkpoint_options(two_sources).size(), 1u);
}

}  // namespace
}  // namespace megalith
