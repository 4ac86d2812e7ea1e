// Random batches on which a layout is compared with one rank. There are few tokens and each has another weight, so the
// result changes when one is lost, counted twice or read by the wrong rank.
#pragma once

#include <cstdint>
#include <optional>

#include "data/batch.h"

namespace megalith {

// One document of every row (`index` counts from 0). Its tokens and labels are drawn by themselves, with another
// `draw` other ones. After silence() it carries no loss.
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
// in their numbers of valid tokens, and when there are four or more samples, one has none.
Batch make_check_batch(const CheckBatchShape& shape, int step);

// No token of the document has a loss. For whole rows in which the task has drawn.
void silence(Batch& rows, const SilentDocument& document);

}  // namespace megalith
