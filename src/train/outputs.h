// What a training run will write, and whether it can. All of it is checked with the configuration, before anything is
// allocated and before ranks meet: a folder that is refused after the last step would cost the whole run.
//
// The check leaves nothing behind. It writes one empty file into the nearest folder that exists and removes it again;
// the folders below are made when the run begins.
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

// Where the parts of a run's folder lie (--output_dir).
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

// Where an experiment file of Primus has a workspace, output_dir is <workspace>/<work_group>/<user_name>/<exp_name>, as
// there, unless somebody gave output_dir a value; what the file leaves out is left out of the path.
void place_run_folder(OptionSet& options, const Resolution& resolution);

// With output_dir: gives the options that name outputs their places in it, where nobody gave them a value.
void place_outputs(OptionSet& options, const Config& config);

// Sets derived.checkpoint.load to the folder of save when that holds checkpoints and the run goes on by itself:
// auto_continue_train, or output_dir without overwrite.
void continue_automatically(Resolved& resolved);

// The folders that only this run may write to while it lives (launch/folder_lock.h), each with its option.
std::vector<std::pair<std::string, std::string>> held_folders(const Config& config);

// Whether the run goes on from what its own folder of checkpoints holds.
bool goes_on_in(const CheckpointOptions& options);

// One error for each output that cannot be written, and for each that would mix with or destroy what is there: another
// run's checkpoints, an exported model, the folder of load_hf. Sets derived.replaces_checkpoints.
std::vector<UserError> check_outputs(Resolved& resolved);

// The errors of one path, which may not exist yet; for tests. is_folder: the path will be a folder.
std::optional<UserError> check_writable(const std::string& option, const std::filesystem::path& path, bool is_folder);

}  // namespace megalith
