// Reading a checkpoint in place, into whatever layout the tensors now have.
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
  bool with_optimizer = true;  // otherwise only the weights ("model" and "master") and what is optional
  // Receives the keys of optional tensors that were left as they are, because the checkpoint lacks some of them.
  std::set<std::string>* begun_afresh = nullptr;
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// A checkpoint's tensors, opened for reading: one store for each key.
std::map<std::string, TensorStore> open_checkpoint(const std::filesystem::path& folder, const Manifest& manifest);

// Fills the local tensors of `state`, and on success its TrainState. Returns what the checkpoint says of itself.
//
// "model" is read from the stored "master" where that is wider than the stored model and the present dtype can use it;
// "master" is read from "model" where the checkpoint has none. Dtypes are converted.
// UserError, before anything is changed, when the architecture differs (each field is named), and when tensors are
// missing, misshaped, or only in the checkpoint's "model" (all are named). Bytes are not checked here:
// verify_checkpoint() does that, and find_checkpoint() calls it. Collective over the world.
Manifest load_checkpoint(const std::filesystem::path& folder, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings = {});

// Throws one UserError that lists everything that does not fit; returns quietly when nothing is in the lists.
// what  "the checkpoint DIR"
void throw_unless_empty(const std::string& what, const std::vector<std::string>& missing,
                        const std::vector<std::string>& misshaped, const std::vector<std::string>& unexpected,
                        const std::string& remedy);

}  // namespace megalith
