// The host's knowledge of a mask's tensors. On a GPU it decides which calls compute attention (plan.h), without reading
// from the device. In positions, so a part of a sequence has the same documents as the whole.
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
  // The contents of query_positions and key_positions, the same for all rows; empty: unknown, or no tensor.
  std::vector<PositionRun> queries, keys;
  // For each row, ascending positions where documents begin (and the previous ones end). Empty: unknown, or no
  // documents.
  std::vector<std::vector<int64_t>> documents;
  // For each row, the position from which on its keys are padding. Empty: unknown, or no padding.
  std::vector<int64_t> lengths;
  // Plans for masks of one microbatch, shared by its layers; null: each call makes its own.
  std::shared_ptr<AttentionPlans> plans;
};

}  // namespace megalith::ops
