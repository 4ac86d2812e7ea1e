// Zero-bubble schedules: backward is split into the gradient of the inputs (I), which the rank before waits for, and
// the gradients of the weights (W), which nobody waits for and which fills gaps. arXiv:2401.10241.
#include <algorithm>

#include "core/error.h"
#include "parallel/pipeline/schedule_algorithms.h"

namespace megalith {
namespace {

// A rank's list under construction: each kind of computation takes the chunk's microbatches in order.
class Order {
 public:
  explicit Order(int num_microbatches) : num_microbatches_(num_microbatches) {}

  // Appends the next microbatch, unless all have been taken.
  void take(ActionKind kind, int chunk) {
    int& next = next_[static_cast<size_t>(kind)][static_cast<size_t>(chunk)];
    if (next < num_microbatches_) actions_.push_back({kind, chunk, next++});
  }
  int taken(ActionKind kind, int chunk) const { return next_[static_cast<size_t>(kind)][static_cast<size_t>(chunk)]; }
  std::vector<Action>& actions() { return actions_; }

 private:
  int num_microbatches_;
  int next_[4][2] = {};  // by kind of computation and chunk
  std::vector<Action> actions_;
};

constexpr ActionKind kF = ActionKind::kForward, kI = ActionKind::kInputBackward, kW = ActionKind::kWeightBackward;

}  // namespace

// ZB-H1: 1F1B whose W lag behind I by as many microbatches as the rank number. So every rank holds at most num_ranks
// microbatches, as rank 0 of 1F1B does, and W fills what was the bubble at the end: (p - 1)(F + I - W) remains when W
// takes no longer than F and than I.
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

// ZB-V: stages go down the ranks and up again, so the last rank turns around without waiting, and rank 0 sees the first
// backward as early as the last rank of a loop does. With F = I = W and m >= 2p - 1 a rank never waits between its
// first and its last action, and the makespan 6 m + p - 1 (in F of a stage) cannot be beaten, for the last rank begins
// after p - 1 forwards. At most 2p microbatches of a chunk are alive, as much as p of a rank's layers.
//
// The pattern needs 2p - 1 microbatches to unfold. With fewer, those that are not there are left out of it: an order
// stays free of cycles when all of a microbatch's actions go.
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
  // At the end what others wait for comes first, and W fills up.
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
