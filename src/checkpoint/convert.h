// Stored models as the states that writers take, so that one form becomes another without a model being built: what is
// stored stays in its files, is mapped, and is written block by block. Memory is bounded by a block, however large the
// model; the system may drop mapped pages. Only block-scaled FP8 matrices are decoded into memory, as bf16.
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
  CheckpointState state;             // its tensors are views of the files, to be read only
  std::deque<Placement> placements;  // of the tensors
  std::filesystem::path folder;      // of the checkpoint itself, or the Hugging Face folder
  std::vector<std::string> notes;    // what was left out of its configuration (HfModel::notes)

  // The tensors of one key.
  std::vector<CheckpointTensor> tensors_of(std::string_view key) const;
  // The dtype that these are stored in; that of the first one.
  at::ScalarType dtype_of(std::string_view key) const;
};

// The checkpoint of iteration `step`, or the newest intact one, in `root` (or `root` itself); its bytes are verified.
// UserError when there is none, and of require_finite().
StoredModel open_stored_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step, Logger& log,
                                   NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// Tensors have canonical names; tied copies and the buffers of old versions are left out. UserError that lists what is
// missing, misshaped or unexpected, and of require_finite(). The state is that of iteration 0, without an optimizer.
StoredModel open_stored_hf(const std::filesystem::path& folder,
                           NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

}  // namespace megalith
