// Reads a checkpoint in place into any layout.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_store.h"
#include "comm/groups.h"

namespace megalith {

struct LoadSettings {
  bool with_optimizer = true;  // false: only weights ("model" and "master") and optional tensors
  // Receives the keys of optional tensors left unchanged because the checkpoint lacks some of them.
  std::set<std::string>* begun_afresh = nullptr;
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// A checkpoint's tensors: one store per key.
std::map<std::string, TensorStore> open_checkpoint(const std::filesystem::path& folder, const Manifest& manifest);

// Fills the local tensors of `state` and, on success, its TrainState. Returns the checkpoint's manifest.
//
// "model" comes from the stored "master" where that is wider and the present dtype can use it; "master" from "model" if
// there is none. Dtypes are converted. UserError, before anything changes, naming the architecture's differing fields,
// or all tensors that are missing, misshaped, or only in the checkpoint's "model". Bytes are verified by
// find_checkpoint(), not here. Collective over the world.
Manifest load_checkpoint(const std::filesystem::path& folder, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings = {});

// Throws one UserError listing every mismatch, if any.
// what  "the checkpoint DIR"
void throw_unless_empty(const std::string& what, const std::vector<std::string>& missing,
                        const std::vector<std::string>& misshaped, const std::vector<std::string>& unexpected,
                        const std::string& remedy);

}  // namespace megalith
