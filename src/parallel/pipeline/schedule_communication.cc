// Adds sends and receives to an order of computations; contract in schedule.h.
#include <algorithm>
#include <cstdint>
#include <tuple>

#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace megalith {
namespace {

// A bundle's transfer from the rank that computed it to its reader.
struct BundleTransfer {
  int64_t time = 0;  // sent at, when F, I and W take one unit each
  int from = 0, to = 0;
  Action send, receive;
  auto key() const { return std::tuple(time, from, to, send.kind, send.chunk, send.microbatch); }
};

// Computations' end times by that clock, and their transfers.
class UnitClock {
 public:
  explicit UnitClock(const PipelineSchedule& schedule)
      : schedule_(schedule),
        shape_(schedule.shape),
        next_(schedule.ranks.size(), 0),
        now_(schedule.ranks.size(), 0),
        ends_(schedule.ranks.size()) {
    const auto num_results = static_cast<size_t>(shape_.num_stages()) * static_cast<size_t>(shape_.num_microbatches);
    for (std::vector<int64_t>& ends : done_) ends.assign(num_results, kNever);
    for (bool has_advanced = true; has_advanced;) {
      has_advanced = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        while (advance(rank)) has_advanced = true;
      }
    }
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < schedule.ranks[rank].size()) refuse("cannot be computed in this order: it waits in a circle");
    }
  }

  const std::vector<int64_t>& ends(int rank) const { return ends_[static_cast<size_t>(rank)]; }
  std::vector<BundleTransfer>& transfers() { return transfers_; }

 private:
  static constexpr int64_t kNever = -1;
  enum Result { kOutputs, kInputGradients, kWeightGradients };

  int64_t& done(Result result, int stage, int microbatch) {
    return done_[result][static_cast<size_t>(stage) * static_cast<size_t>(shape_.num_microbatches) +
                         static_cast<size_t>(microbatch)];
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw InternalError(
        fmt::format("the schedule {} {}; next on\n{}", schedule_.name, what, next_actions_text(schedule_, next_)));
  }

  // Computes the rank's next action if its inputs are ready.
  bool advance(int rank) {
    const std::vector<Action>& actions = schedule_.ranks[static_cast<size_t>(rank)];
    size_t& next = next_[static_cast<size_t>(rank)];
    if (next >= actions.size()) return false;
    const Action& action = actions[next];
    if (action.chunk < 0 || action.chunk >= shape_.num_chunks || action.microbatch < 0 ||
        action.microbatch >= shape_.num_microbatches) {
      refuse("has a chunk or microbatch that is not there");
    }
    const int stage = shape_.stage_of(rank, action.chunk), i = action.microbatch;
    const bool is_forward = action.kind == ActionKind::kForward;
    const bool is_weight = action.kind == ActionKind::kWeightBackward;
    const int source = is_forward ? stage - 1 : stage + 1;  // stage that it reads from
    int64_t start = now_[static_cast<size_t>(rank)];
    const auto wait_for = [&](int64_t end) {
      start = std::max(start, end);
      return end != kNever;
    };
    if (is_weight) {
      if (!wait_for(done(kInputGradients, stage, i))) return false;
    } else {
      if (!is_forward && !wait_for(done(kOutputs, stage, i))) return false;
      if (source >= 0 && source < shape_.num_stages() &&
          !wait_for(done(is_forward ? kOutputs : kInputGradients, source, i))) {
        return false;
      }
    }
    const Result result = is_forward ? kOutputs : is_weight ? kWeightGradients : kInputGradients;
    if (done(result, stage, i) != kNever) refuse("computes something twice");
    const int64_t end = start + (action.kind == ActionKind::kBackward ? 2 : 1);
    done(result, stage, i) = end;
    if (action.kind == ActionKind::kBackward) done(kWeightGradients, stage, i) = end;
    now_[static_cast<size_t>(rank)] = end;
    ends_[static_cast<size_t>(rank)].push_back(end);
    if (!is_weight) add_transfer(rank, action, stage, end);
    ++next;
    return true;
  }

  void add_transfer(int rank, const Action& action, int stage, int64_t end) {
    const bool is_forward = action.kind == ActionKind::kForward;
    const int target = is_forward ? stage + 1 : stage - 1;
    if (target < 0 || target >= shape_.num_stages() || shape_.rank_of(target) == rank) return;
    const int peer = shape_.rank_of(target);
    transfers_.push_back({.time = end,
                          .from = rank,
                          .to = peer,
                          .send = {is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward, action.chunk,
                                   action.microbatch, peer},
                          .receive = {is_forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
                                      shape_.chunk_of(target), action.microbatch, rank}});
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  std::vector<size_t> next_;
  std::vector<int64_t> now_;
  std::vector<std::vector<int64_t>> ends_;  // by rank and action
  std::vector<int64_t> done_[3];            // by Result: when each stage had it for each microbatch
  std::vector<BundleTransfer> transfers_;
};

}  // namespace

PipelineSchedule with_communication(PipelineSchedule computations) {
  MEGALITH_CHECK(computations.ranks.size() == static_cast<size_t>(computations.shape.num_ranks),
                 "{} lists for {} ranks", computations.ranks.size(), computations.shape.num_ranks);
  for (std::vector<Action>& actions : computations.ranks) {
    std::erase_if(actions, [](const Action& action) { return is_communication(action.kind); });
  }
  UnitClock clock(computations);
  std::vector<BundleTransfer>& transfers = clock.transfers();
  std::sort(transfers.begin(), transfers.end(),
            [](const BundleTransfer& a, const BundleTransfer& b) { return a.key() < b.key(); });
  // On both sides a transfer follows the computations that ended by its time, so all lists agree: by time, computations
  // before transfers. Its reader ends later, so it follows the receive.
  PipelineSchedule result{computations.name, computations.shape,
                          std::vector<std::vector<Action>>(computations.ranks.size())};
  std::vector<size_t> taken(computations.ranks.size(), 0);
  const auto append = [&](int rank, int64_t time, const Action& action) {
    const auto r = static_cast<size_t>(rank);
    const std::vector<Action>& actions = computations.ranks[r];
    for (; taken[r] < actions.size() && clock.ends(rank)[taken[r]] <= time; ++taken[r]) {
      result.ranks[r].push_back(actions[taken[r]]);
    }
    result.ranks[r].push_back(action);
  };
  for (const BundleTransfer& transfer : transfers) {
    append(transfer.from, transfer.time, transfer.send);
    append(transfer.to, transfer.time, transfer.receive);
  }
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const std::vector<Action>& actions = computations.ranks[r];
    result.ranks[r].insert(result.ranks[r].end(), actions.begin() + static_cast<std::ptrdiff_t>(taken[r]),
                           actions.end());
  }
  return result;
}

}  // namespace megalith
