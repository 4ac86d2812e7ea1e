// Stored models as writers' input, to convert formats without building a model: files are mapped and written block by
// block, in bounded memory. Only block-scaled FP8 matrices are decoded into memory, as bf16.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/finite_weights.h"
#include "core/log.h"
#include "models/families.h"

namespace megalith {

struct StoredModel {
  const ModelFamily* family = nullptr;
  ModelConfig config;
  CheckpointState state;  // its tensors are read-only views of the files
  std::deque<Placement> placements;
  std::filesystem::path folder;    // of the checkpoint itself, or the Hugging Face folder
  std::vector<std::string> notes;  // parts of its configuration that were left out (HfModel::notes)

  std::vector<CheckpointTensor> tensors_of(std::string_view key) const;
  // The stored dtype of the key's first tensor.
  at::ScalarType dtype_of(std::string_view key) const;
};

// The checkpoint of iteration `step`, or the newest intact one, in `root` (or `root` itself), its bytes verified.
// UserError when there is none, or from require_finite().
StoredModel open_stored_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step, Logger& log,
                                   NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// Canonical names, without tied copies and old versions' buffers. UserError listing missing, misshaped and unexpected
// tensors, or from require_finite(). At iteration 0, without an optimizer.
StoredModel open_stored_hf(const std::filesystem::path& folder,
                           NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

}  // namespace megalith
