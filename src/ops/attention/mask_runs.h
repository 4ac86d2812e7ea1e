// The host's knowledge of a mask's tensors, to plan GPU calls (plan.h) without reading the device. In positions: a
// sequence's parts have its documents.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace megalith::ops {

class AttentionPlans;
std::shared_ptr<AttentionPlans> make_attention_plans();

// `count` neighbours with positions first, first + 1, …
struct PositionRun {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const PositionRun&) const = default;
};

struct MaskRuns {
  // For all rows; empty: unknown, or no tensor.
  std::vector<PositionRun> queries, keys;
  // Per row, positions where documents begin, ascending. Empty: unknown, or none.
  std::vector<std::vector<int64_t>> documents;
  // Per row, the position where padding begins. Empty: unknown, or none.
  std::vector<int64_t> lengths;
  // Shared by a microbatch's layers; null: each call plans.
  std::shared_ptr<AttentionPlans> plans;
};

}  // namespace megalith::ops
