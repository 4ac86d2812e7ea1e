// Schedules with whole backward, as in Megatron-LM: GPipe, 1F1B, interleaved 1F1B.
#include <algorithm>

#include "core/error.h"
#include "parallel/pipeline/schedule_algorithms.h"

namespace megalith {

// All forwards, then all backwards; each chunk takes every microbatch before the next chunk. arXiv:1811.06965.
std::vector<Action> gpipe_actions(const PipelineShape& shape, int /*rank*/) {
  std::vector<Action> actions;
  for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
    for (int i = 0; i < shape.num_microbatches; ++i) actions.push_back({ActionKind::kForward, chunk, i});
  }
  for (int chunk = shape.num_chunks - 1; chunk >= 0; --chunk) {
    for (int i = 0; i < shape.num_microbatches; ++i) actions.push_back({ActionKind::kBackward, chunk, i});
  }
  return actions;
}

// Enough forwards to keep every rank busy, then alternating forward and backward. arXiv:1806.03377.
std::vector<Action> one_forward_one_backward_actions(const PipelineShape& shape, int rank) {
  MEGALITH_CHECK(shape.num_chunks == 1, "1F1B with {} chunks", shape.num_chunks);
  const int m = shape.num_microbatches;
  const int warmup = std::min(shape.num_ranks - rank - 1, m);
  std::vector<Action> actions;
  int forward = 0;
  for (; forward < warmup; ++forward) actions.push_back({ActionKind::kForward, 0, forward});
  for (int backward = 0; backward < m; ++backward) {
    if (forward < m) actions.push_back({ActionKind::kForward, 0, forward++});
    actions.push_back({ActionKind::kBackward, 0, backward});
  }
  return actions;
}

// 1F1B over virtual steps: chunks take `group` microbatches in turn, in backward from the last chunk. arXiv:2104.04473.
std::vector<Action> interleaved_actions(const PipelineShape& shape, int rank, int group) {
  const int p = shape.num_ranks, v = shape.num_chunks, m = shape.num_microbatches;
  if (group == 0) group = p;
  MEGALITH_CHECK(shape.order == StageOrder::kLoop, "interleaved 1F1B lies in a loop");
  MEGALITH_CHECK(group >= p, "a group of {} microbatches on {} ranks", group, p);
  // A shorter last group would reach a chunk's turn before its first microbatch has gone round.
  MEGALITH_CHECK(m % group == 0 || m % group >= p, "{} microbatches in groups of {} leave {}, fewer than the {} ranks",
                 m, group, m % group, p);
  group = std::min(group, m);
  std::vector<Action> steps;  // forward, in order
  for (int begin = 0; begin < m; begin += group) {
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int i = begin; i < std::min(begin + group, m); ++i) steps.push_back({ActionKind::kForward, chunk, i});
    }
  }
  const size_t warmup = std::min(static_cast<size_t>((p - rank - 1) * 2 + (v - 1) * group), steps.size());
  std::vector<Action> actions(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(warmup));
  size_t forward = warmup;
  for (const Action& step : steps) {
    if (forward < steps.size()) actions.push_back(steps[forward++]);
    actions.push_back({ActionKind::kBackward, v - 1 - step.chunk, step.microbatch});
  }
  return actions;
}

}  // namespace megalith
