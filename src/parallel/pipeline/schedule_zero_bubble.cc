// Zero-bubble schedules split backward into the inputs' gradient (I), which the previous rank needs, and the weights'
// (W), which fills gaps. arXiv:2401.10241.
#include <algorithm>

#include "core/error.h"
#include "parallel/pipeline/schedule_algorithms.h"

namespace megalith {
namespace {

// A rank's list under construction; each kind of computation takes a chunk's microbatches in order.
class Order {
 public:
  explicit Order(int num_microbatches) : num_microbatches_(num_microbatches) {}

  // Appends the next microbatch, if any is left.
  void take(ActionKind kind, int chunk) {
    int& next = next_[static_cast<size_t>(kind)][static_cast<size_t>(chunk)];
    if (next < num_microbatches_) actions_.push_back({kind, chunk, next++});
  }
  int taken(ActionKind kind, int chunk) const { return next_[static_cast<size_t>(kind)][static_cast<size_t>(chunk)]; }
  std::vector<Action>& actions() { return actions_; }

 private:
  int num_microbatches_;
  int next_[4][2] = {};  // by kind and chunk
  std::vector<Action> actions_;
};

constexpr ActionKind kF = ActionKind::kForward, kI = ActionKind::kInputBackward, kW = ActionKind::kWeightBackward;

}  // namespace

// ZB-H1: 1F1B with W lagging I by the rank's number of microbatches. Ranks hold at most num_ranks microbatches, like
// 1F1B's rank 0; of the final bubble (p - 1)(F + I - W) remains if W is not longer than F or I.
std::vector<Action> zero_bubble_actions(const PipelineShape& shape, int rank) {
  MEGALITH_CHECK(shape.num_chunks == 1, "ZB-H1 with {} chunks", shape.num_chunks);
  const int m = shape.num_microbatches;
  Order order(m);
  for (int i = 0; i < shape.num_ranks - rank - 1; ++i) order.take(kF, 0);
  for (int i = 0; i < m; ++i) {
    order.take(kF, 0);
    order.take(kI, 0);
    if (i >= rank) order.take(kW, 0);
  }
  while (order.taken(kW, 0) < m) order.take(kW, 0);
  return order.actions();
}

// ZB-V: stages go down the ranks and up again, so the last rank turns around without waiting, and rank 0's first
// backward is as early as a loop's last rank's. With F = I = W and m >= 2p - 1 ranks never wait after their first
// action, and the makespan 6 m + p - 1 (in F of a stage) is optimal: the last rank begins after p - 1 forwards. At most
// 2p microbatches of a chunk are alive, equal to p of a rank's layers.
//
// With fewer than 2p - 1 microbatches, missing ones are skipped: removing all of a microbatch's actions creates no
// cycle.
std::vector<Action> zero_bubble_v_actions(const PipelineShape& shape, int rank) {
  MEGALITH_CHECK(shape.num_chunks == 2 && shape.order == StageOrder::kVee, "ZB-V needs two chunks in a V, not {}",
                 shape.num_chunks);
  const int p = shape.num_ranks;
  const int m = std::max(shape.num_microbatches, 2 * p - 1);
  Order order(m);
  // Until the first microbatch has come back up the V …
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) order.take(kF, 0);
  for (int i = 0; i < rank; ++i) {
    order.take(kF, 1);
    order.take(kF, 0);
  }
  // … until it has gone down and up again backward …
  for (int i = 0; i < p - rank; ++i) {
    order.take(kF, 1);
    order.take(kI, 1);
    order.take(kW, 1);
  }
  // … then both chunks in turn.
  while (order.taken(kF, 1) < m) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      order.take(kF, chunk);
      order.take(kI, chunk);
      order.take(kW, chunk);
    }
  }
  // Finally others' needs first, and W fills gaps.
  for (int i = 0; i < rank; ++i) {
    order.take(kI, 0);
    order.take(kI, 1);
  }
  for (int i = 0; i < p - rank; ++i) {
    order.take(kI, 0);
    order.take(kW, 0);
  }
  while (order.taken(kW, 1) < m) order.take(kW, 1);
  while (order.taken(kW, 0) < m) order.take(kW, 0);
  std::erase_if(order.actions(), [&](const Action& action) { return action.microbatch >= shape.num_microbatches; });
  return order.actions();
}

}  // namespace megalith
