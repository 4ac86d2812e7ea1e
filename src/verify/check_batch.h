// Random batches to compare a layout with one rank: few tokens, individually weighted, so that losing, repeating or
// misplacing one shows.
#pragma once

#include <cstdint>
#include <optional>

#include "data/batch.h"

namespace megalith {

// A document of every row (`index` from 0) without loss, its tokens and labels drawn by `draw`.
struct SilentDocument {
  int index = 0, draw = 0;
  auto operator<=>(const SilentDocument&) const = default;
};

struct CheckBatchShape {
  int64_t num_samples = 8, sequence = 6;  // of a global batch
  int64_t vocab_size = 0;
  bool has_documents = false;                 // two per row, isolated (reset_attention_mask)
  bool restarts_positions = false;            // at the second document (reset_position_ids)
  std::optional<SilentDocument> silent = {};  // requires has_documents
};

// The global batch of a step, from 0. Pure. Loss weights are 0, 1/4, … 1: valid tokens vary, and one of four or more
// samples has none.
Batch make_check_batch(const CheckBatchShape& shape, int step);

// Removes the document's loss from whole rows, after the task's draws.
void silence(Batch& rows, const SilentDocument& document);

}  // namespace megalith
