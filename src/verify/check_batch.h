// Random batches on which a layout is compared with one rank: few tokens, each of which counts differently, so that one
// lost, doubled or read by the wrong rank shows.
#pragma once

#include <cstdint>
#include <optional>

#include "data/batch.h"

namespace megalith {

// A document of every row, counted from 0, whose tokens and labels are drawn by themselves, and which silence() makes
// carry no loss.
struct SilentDocument {
  int index = 0, draw = 0;
  auto operator<=>(const SilentDocument&) const = default;
};

struct CheckBatchShape {
  int64_t num_samples = 8, sequence = 6;  // of a global batch
  int64_t vocab_size = 0;
  bool has_documents = false;                 // two a row, which do not see one another (reset_attention_mask)
  bool restarts_positions = false;            // and positions start anew in the second (reset_position_ids)
  std::optional<SilentDocument> silent = {};  // needs has_documents
};

// The global batch of a step, counted from 0; a function of its arguments. Loss weights are 0, 1/4, … 1: samples differ
// in their numbers of valid tokens, and of four or more one has none.
Batch make_check_batch(const CheckBatchShape& shape, int step);

// No token of the document has a loss. For whole rows in which the task has drawn.
void silence(Batch& rows, const SilentDocument& document);

}  // namespace megalith
