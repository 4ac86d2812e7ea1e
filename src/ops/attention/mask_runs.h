// What the host knows of a mask's tensors without reading them. On a GPU it decides which calls compute attention
// (plan.h): nothing is read from the device for it.
//
// All of it is told in positions, so a part of a sequence has the same documents as the whole.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace megalith::ops {

class AttentionPlans;
std::shared_ptr<AttentionPlans> make_attention_plans();  // none yet

// Positions first, first + 1, … of `count` neighbours in a tensor.
struct PositionRun {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const PositionRun&) const = default;
};

struct MaskRuns {
  // What query_positions and key_positions hold, the same for all rows; empty: not known, or the tensor is not there.
  std::vector<PositionRun> queries, keys;
  // For each row, the positions where its documents begin, ascending. A document ends where the next begins. Empty: not
  // known, or the mask has no documents.
  std::vector<std::vector<int64_t>> documents;
  // For each row, the position from which on its keys are padding. Empty: not known, or there is no padding.
  std::vector<int64_t> lengths;
  // The plans that were made for masks of one microbatch, which its layers share; null: each call makes its own.
  std::shared_ptr<AttentionPlans> plans;
};

}  // namespace megalith::ops
