// Stored models as writers' input, for converting without building a model. Files are mapped; only block-scaled FP8
// matrices are decoded in memory, as bf16.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/finite_weights.h"
#include "core/log.h"
#include "models/families.h"

namespace megalith {

struct StoredModel {
  const ModelFamily* family = nullptr;
  ModelConfig config;
  CheckpointState state;  // outlines (tensor_files/outline.h), or tensors in memory
  std::deque<Placement> placements;
  std::filesystem::path folder;    // of the checkpoint or Hugging Face model
  std::vector<std::string> notes;  // HfModel::notes

  std::vector<CheckpointTensor> tensors_of(std::string_view key) const;
  // The first tensor's.
  at::ScalarType dtype_of(std::string_view key) const;
};

// Iteration `step`'s or the newest intact checkpoint in `root` (or `root` itself), bytes verified. UserError if none,
// or from require_finite().
StoredModel open_stored_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step, Logger& log,
                                   NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);
StoredModel stored_model(const StoredCheckpoint& stored, NonfiniteWeights nonfinite);

// Canonical names, without tied copies and old buffers; iteration 0, no optimizer. UserError listing missing, misshaped
// and unexpected tensors, or from require_finite().
StoredModel open_stored_hf(const std::filesystem::path& folder,
                           NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

}  // namespace megalith
