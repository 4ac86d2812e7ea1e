// Checks a run's outputs with the configuration, before allocation: a folder refused after the last step would cost the
// run. Writes an empty file to the nearest existing folder, and removes it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct CheckpointOptions;
struct Config;
struct Resolution;
struct Resolved;

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path lock() const { return root / "lock.json"; }
  std::filesystem::path configuration() const { return root / "config.yaml"; }
  std::filesystem::path record() const { return root / "run.json"; }
  std::filesystem::path log() const { return root / "log.txt"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path page() const { return root / "page.html"; }
  std::filesystem::path plot() const { return root / "loss.svg"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path wandb() const { return root / "wandb"; }
  std::filesystem::path mlflow() const { return root / "mlruns"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path exported() const { return root / "hf"; }
};

// Sets unset output_dir to <workspace>/<work_group>/<user_name>/<exp_name> if a Primus experiment has a workspace;
// missing parts are omitted.
void place_run_folder(OptionSet& options, const Resolution& resolution);

// With output_dir: sets unset output options to places in it.
void place_outputs(OptionSet& options, const Config& config);

// Sets derived.checkpoint.load to the folder of save if it has checkpoints and the run continues automatically:
// auto_continue_train, or output_dir without overwrite.
void continue_automatically(Resolved& resolved);

// Folders that only this run may write to (launch/folder_lock.h), each with its option.
std::vector<std::pair<std::string, std::string>> held_folders(const Config& config);

// True if the run continues from its own folder of checkpoints.
bool goes_on_in(const CheckpointOptions& options);

// An error for each output that cannot be written, or would mix with or destroy existing content: another run's
// checkpoints, an exported model, the folder of load_hf. Sets derived.replaces_checkpoints.
std::vector<UserError> check_outputs(Resolved& resolved);

// Error of one path, which may not exist yet; for tests. is_folder: it will be a folder.
std::optional<UserError> check_writable(const std::string& option, const std::filesystem::path& path, bool is_folder);

}  // namespace megalith
