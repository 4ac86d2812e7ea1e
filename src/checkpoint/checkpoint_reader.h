// Reads a checkpoint in place into any layout.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_store.h"
#include "comm/groups.h"

namespace megalith {

struct LoadSettings {
  bool with_optimizer = true;  // false: only "model", "master" and optional tensors
  // Receives keys of optional tensors left unchanged for lack of some.
  std::set<std::string>* begun_afresh = nullptr;
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// One store per key.
std::map<std::string, TensorStore> open_checkpoint(const std::filesystem::path& folder, const Manifest& manifest);

// A checkpoint opened for reading: ours, or another trainer's as ours (foreign/), whose manifest has no chunks.
struct StoredCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
  std::map<std::string, TensorStore> stores;  // by key
};
using CheckpointOpener = std::function<StoredCheckpoint()>;
StoredCheckpoint open_checkpoint(const std::filesystem::path& folder);

// Fills the local tensors of `state` and, on success, its TrainState; returns the manifest.
//
// "model" comes from the stored "master" where wider and useful to the present dtype; "master" from "model" if missing.
// Converts dtypes. UserError, before anything changes, naming the architecture's differing fields, or all tensors
// missing, misshaped, or only in the checkpoint's "model". find_checkpoint() verifies bytes. Collective over the world.
Manifest load_checkpoint(const std::filesystem::path& folder, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings = {});
// Every rank calls `open`.
Manifest load_checkpoint(const CheckpointOpener& open, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings = {});

// One UserError for all mismatches.
//   what  "the checkpoint DIR"
void throw_unless_empty(const std::string& what, const std::vector<std::string>& missing,
                        const std::vector<std::string>& misshaped, const std::vector<std::string>& unexpected,
                        const std::string& remedy);

}  // namespace megalith
