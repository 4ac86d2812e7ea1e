// Checks that a schedule is complete and ends, even if each transfer waits for its peer.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "planner/pipeline_simulator.h"

namespace megalith {
namespace {

// A stage's outputs, or its inputs' gradient, for one microbatch.
struct Parcel {
  bool is_forward = true;
  int to_stage = 0, microbatch = 0;
  auto operator<=>(const Parcel&) const = default;
};

bool is_send(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }

Parcel parcel_of(const PipelineShape& shape, int rank, const Action& action) {
  const bool is_forward = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
  const int stage = shape.stage_of(rank, action.chunk);
  const int step = is_forward ? 1 : -1;
  return {is_forward, is_send(action.kind) ? stage + step : stage, action.microbatch};
}

class ScheduleCheck {
 public:
  explicit ScheduleCheck(const PipelineSchedule& schedule)
      : schedule_(schedule), shape_(schedule.shape), next_(schedule.ranks.size(), 0) {}

  void run() {
    check_places();
    const bool ends = walk();
    check_computations();
    check_transfers();
    if (!ends) refuse("waits in a circle when each transfer waits for its peer");
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw InternalError(fmt::format("the pipeline schedule {} cannot run: {}; next on\n{}", schedule_.name, reason,
                                    next_actions_text(schedule_, next_)));
  }

  // Chunks, microbatches and peers exist.
  void check_places() const {
    if (shape_.num_ranks < 1 || shape_.num_chunks < 1 || shape_.num_microbatches < 1 ||
        schedule_.ranks.size() != static_cast<size_t>(shape_.num_ranks)) {
      throw InternalError(fmt::format("the pipeline schedule {} has {} lists for {} ranks, {} chunks, {} microbatches",
                                      schedule_.name, schedule_.ranks.size(), shape_.num_ranks, shape_.num_chunks,
                                      shape_.num_microbatches));
    }
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (const Action& action : actions_of(rank)) {
        if (action.chunk < 0 || action.chunk >= shape_.num_chunks || action.microbatch < 0 ||
            action.microbatch >= shape_.num_microbatches) {
          refuse(fmt::format("rank {} has {}, of {} chunks and {} microbatches", rank, action.text(), shape_.num_chunks,
                             shape_.num_microbatches));
        }
        if (!is_communication(action.kind)) continue;
        const Parcel parcel = parcel_of(shape_, rank, action);
        // A receive's sender, a send's receiver.
        const int other = is_send(action.kind) ? parcel.to_stage : parcel.to_stage - (parcel.is_forward ? 1 : -1);
        if (other < 0 || other >= shape_.num_stages() || shape_.rank_of(other) != action.peer || action.peer == rank) {
          refuse(fmt::format("rank {} has {}, but its neighbour is not there", rank, action.text()));
        }
      }
    }
  }

  // Advances as far as possible when a transfer needs both sides at the head of their queues. The order of
  // turns does not matter: possible actions stay possible.
  bool walk() {
    std::vector<std::deque<size_t>> queues(next_.size());  // transfers begun, not done
    for (bool has_advanced = true; has_advanced;) {
      has_advanced = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        const std::vector<Action>& actions = actions_of(rank);
        for (size_t& next = at(next_, rank); next < actions.size() && begin(rank, actions[next]); ++next) {
          if (is_communication(actions[next].kind)) at(queues, rank).push_back(next);
          has_advanced = true;
        }
      }
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        while (!at(queues, rank).empty()) {
          const Action& send = actions_of(rank)[at(queues, rank).front()];
          if (!is_send(send.kind) || at(queues, send.peer).empty()) break;
          const Action& receive = actions_of(send.peer)[at(queues, send.peer).front()];
          const Parcel parcel = parcel_of(shape_, rank, send);
          if (is_send(receive.kind) || !is_communication(receive.kind) || receive.peer != rank ||
              parcel_of(shape_, send.peer, receive) != parcel) {
            break;
          }
          received_.insert(parcel);
          at(queues, rank).pop_front();
          at(queues, send.peer).pop_front();
          has_advanced = true;
        }
      }
    }
    bool is_done = true;
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      // Stuck in its pending transfer.
      if (!at(queues, rank).empty()) at(next_, rank) = at(queues, rank).front();
      is_done = is_done && at(next_, rank) == actions_of(rank).size();
    }
    return is_done;
  }

  // True if possible now; a computation is then done.
  bool begin(int rank, const Action& action) {
    const int stage = shape_.stage_of(rank, action.chunk), i = action.microbatch;
    const auto has = [&](ActionKind kind, int of_stage) { return computed_.contains({kind, of_stage, i}); };
    const auto has_input_gradient = [&](int of_stage) {
      return has(ActionKind::kBackward, of_stage) || has(ActionKind::kInputBackward, of_stage);
    };
    switch (action.kind) {
      case ActionKind::kReceiveForward:
      case ActionKind::kReceiveBackward:
        return true;
      case ActionKind::kSendForward:
        return has(ActionKind::kForward, stage);
      case ActionKind::kSendBackward:
        return has_input_gradient(stage);
      case ActionKind::kForward:
        if (!is_there(rank, stage, stage - 1, i, [&](int from) { return has(ActionKind::kForward, from); })) {
          return false;
        }
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputBackward:
        if (!has(ActionKind::kForward, stage) || !is_there(rank, stage, stage + 1, i, has_input_gradient)) return false;
        break;
      case ActionKind::kWeightBackward:
        if (!has(ActionKind::kInputBackward, stage)) return false;
        break;
    }
    computed_.insert({action.kind, stage, i});
    return true;
  }

  // True if `stage` can read `from`: received, computed on this rank, or not needed at the ends.
  template <typename IsComputed>
  bool is_there(int rank, int stage, int from, int microbatch, const IsComputed& is_computed) const {
    if (from < 0 || from >= shape_.num_stages()) return true;
    if (shape_.rank_of(from) == rank) return is_computed(from);
    return received_.contains({from < stage, stage, microbatch});
  }

  // Each stage computes each microbatch forward once, and backward once, in one form, or never.
  void check_computations() const {
    std::map<std::tuple<ActionKind, int, int>, int> counts;
    bool has_backward = false;
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (const Action& action : actions_of(rank)) {
        if (is_communication(action.kind)) continue;
        has_backward = has_backward || action.kind != ActionKind::kForward;
        if (++counts[{action.kind, shape_.stage_of(rank, action.chunk), action.microbatch}] > 1) {
          refuse(fmt::format("rank {} has {} twice", rank, action.text()));
        }
      }
    }
    for (int stage = 0; stage < shape_.num_stages(); ++stage) {
      for (int i = 0; i < shape_.num_microbatches; ++i) {
        const auto has = [&](ActionKind kind) { return counts.contains({kind, stage, i}); };
        const auto miss = [&](ActionKind kind) {
          const Action action{kind, shape_.chunk_of(stage), i};
          refuse(fmt::format("rank {} misses {}", shape_.rank_of(stage), action.text()));
        };
        if (!has(ActionKind::kForward)) miss(ActionKind::kForward);
        if (!has_backward) continue;
        const bool is_whole = has(ActionKind::kBackward);
        if (is_whole && (has(ActionKind::kInputBackward) || has(ActionKind::kWeightBackward))) {
          refuse(fmt::format("rank {} has {} both whole and in parts", shape_.rank_of(stage),
                             Action{ActionKind::kBackward, shape_.chunk_of(stage), i}.text()));
        }
        if (is_whole) continue;
        if (!has(ActionKind::kInputBackward)) {
          miss(has(ActionKind::kWeightBackward) ? ActionKind::kInputBackward : ActionKind::kBackward);
        }
        if (!has(ActionKind::kWeightBackward)) miss(ActionKind::kWeightBackward);
      }
    }
  }

  // Sends and receives between two ranks match, in order, and are needed.
  void check_transfers() const {
    std::map<std::pair<int, int>, std::vector<Parcel>> sent, received;  // by (from, to)
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      std::set<std::pair<bool, Parcel>> seen;
      for (const Action& action : actions_of(rank)) {
        if (!is_communication(action.kind)) continue;
        const Parcel parcel = parcel_of(shape_, rank, action);
        if (!seen.emplace(is_send(action.kind), parcel).second) {
          refuse(fmt::format("rank {} has {} twice", rank, action.text()));
        }
        if (is_send(action.kind)) {
          sent[{rank, action.peer}].push_back(parcel);
        } else {
          received[{action.peer, rank}].push_back(parcel);
        }
      }
    }
    for (int from = 0; from < shape_.num_ranks; ++from) {
      for (int to = 0; to < shape_.num_ranks; ++to) {
        const std::vector<Parcel>&out = sent[{from, to}], &in = received[{from, to}];
        if (out == in) continue;
        const size_t place =
            static_cast<size_t>(std::mismatch(out.begin(), out.end(), in.begin(), in.end()).first - out.begin());
        refuse(fmt::format("transfer {} from rank {} to rank {} is sent as {} and received as {}", place, from, to,
                           text(out, place), text(in, place)));
      }
    }
  }

  std::string text(const std::vector<Parcel>& parcels, size_t place) const {
    if (place >= parcels.size()) return "nothing";
    const Parcel& parcel = parcels[place];
    return fmt::format("the {} of microbatch {} for stage {}", parcel.is_forward ? "outputs" : "gradient",
                       parcel.microbatch, parcel.to_stage);
  }

  template <typename T>
  static T& at(std::vector<T>& values, int rank) {
    return values[static_cast<size_t>(rank)];
  }
  const std::vector<Action>& actions_of(int rank) const { return schedule_.ranks[static_cast<size_t>(rank)]; }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  std::vector<size_t> next_;                             // by rank
  std::set<std::tuple<ActionKind, int, int>> computed_;  // kind, stage, microbatch
  std::set<Parcel> received_;
};

}  // namespace

void check_pipeline_schedule(const PipelineSchedule& schedule) { ScheduleCheck(schedule).run(); }

}  // namespace megalith
