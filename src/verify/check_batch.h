// Random batches to compare a layout with one rank: few tokens, each with its own weight, so that losing, repeating or
// misplacing one shows.
#pragma once

#include <cstdint>
#include <optional>

#include "data/batch.h"

namespace megalith {

// One document of every row (`index` from 0), its tokens and labels drawn separately, by `draw`; after silence() it
// carries no loss.
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

// The global batch of a step, from 0; a pure function. Loss weights are 0, 1/4, … 1: numbers of valid tokens vary, and
// of four or more samples one has none.
Batch make_check_batch(const CheckBatchShape& shape, int step);

// Removes the document's loss, in whole rows to which the task has added its draws.
void silence(Batch& rows, const SilentDocument& document);

}  // namespace megalith
