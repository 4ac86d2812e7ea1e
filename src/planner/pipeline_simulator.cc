#include "planner/pipeline_simulator.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

constexpr double kNotYet = -1;

// Times of availability, by stage and microbatch.
class Moments {
 public:
  explicit Moments(const PipelineShape& shape)
      : num_microbatches_(static_cast<size_t>(shape.num_microbatches)),
        values_(static_cast<size_t>(shape.num_stages()) * num_microbatches_, kNotYet) {}
  double& at(int stage, int microbatch) {
    return values_[static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch)];
  }

 private:
  size_t num_microbatches_;
  std::vector<double> values_;
};

class Simulator {
 public:
  Simulator(const PipelineSchedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule),
        shape_(schedule.shape),
        costs_(costs),
        outputs_(shape_),
        input_gradients_(shape_),
        received_forward_(shape_),
        received_backward_(shape_),
        now_(schedule.ranks.size(), 0),
        links_(schedule.ranks.size() * schedule.ranks.size()) {
    result_.ranks.resize(schedule.ranks.size());
    result_.busy.assign(schedule.ranks.size(), 0);
    result_.peak_live.assign(schedule.ranks.size(), 0);
    result_.peak_activations.assign(schedule.ranks.size(), 0);
  }

  PipelineSimulation run() {
    for (bool has_advanced = true; has_advanced;) {
      has_advanced = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        while (advance(rank)) has_advanced = true;
      }
    }
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      MEGALITH_CHECK(result_.ranks[r].size() == schedule_.ranks[r].size(), "rank {} of {} stopped", rank,
                     schedule_.name);
      finish(rank);
    }
    return std::move(result_);
  }

 private:
  // Takes and times the rank's next action, if it can begin.
  bool advance(int rank) {
    const auto r = static_cast<size_t>(rank);
    const size_t next = result_.ranks[r].size();
    if (next == schedule_.ranks[r].size()) return false;
    const Action& action = schedule_.ranks[r][next];
    const int stage = shape_.stage_of(rank, action.chunk), i = action.microbatch;
    const StageTimes& times = costs_.stages[static_cast<size_t>(stage)];
    const double share = costs_.microbatches.empty() ? 1 : costs_.microbatches[static_cast<size_t>(i)];
    TimedAction timed{action, now_[r], now_[r]};
    switch (action.kind) {
      case ActionKind::kSendForward:
        timed.end = send(rank, action, outputs_.at(stage, i), timed.start);
        break;
      case ActionKind::kSendBackward:
        timed.end = send(rank, action, input_gradients_.at(stage, i), timed.start);
        break;
      case ActionKind::kReceiveForward:
        if (!receive(rank, action, received_forward_.at(stage, i), timed)) return false;
        break;
      case ActionKind::kReceiveBackward:
        if (!receive(rank, action, received_backward_.at(stage, i), timed)) return false;
        break;
      case ActionKind::kForward:
        if (stage > 0 && !wait(neighbour(rank, stage - 1, stage, i, outputs_, received_forward_), timed)) return false;
        occupy(rank, timed, share * times.forward);
        outputs_.at(stage, i) = timed.end;
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputBackward: {
        const bool is_last = stage + 1 == shape_.num_stages();
        if (!is_last && !wait(neighbour(rank, stage + 1, stage, i, input_gradients_, received_backward_), timed)) {
          return false;
        }
        const bool is_whole = action.kind == ActionKind::kBackward;
        occupy(rank, timed, share * (times.input_backward + (is_whole ? times.weight_backward : 0)));
        input_gradients_.at(stage, i) = timed.end;
        break;
      }
      case ActionKind::kWeightBackward:
        occupy(rank, timed, share * times.weight_backward);
        break;
    }
    result_.ranks[r].push_back(timed);
    return true;
  }

  // Availability of a neighbouring stage's result to `reader`.
  double neighbour(int rank, int stage, int reader, int microbatch, Moments& computed, Moments& received) {
    return shape_.rank_of(stage) == rank ? computed.at(stage, microbatch) : received.at(reader, microbatch);
  }

  static bool wait(double moment, TimedAction& timed) {
    if (moment == kNotYet) return false;
    timed.start = std::max(timed.start, moment);
    return true;
  }

  void occupy(int rank, TimedAction& timed, double duration) {
    timed.end = timed.start + duration;
    now_[static_cast<size_t>(rank)] = timed.end;
    result_.busy[static_cast<size_t>(rank)] += duration;
  }

  // Returns the arrival; `ready`: the bundle was computed, `start`: the rank reached the send.
  double send(int rank, const Action& action, double ready, double start) {
    Link& link = link_of(rank, action.peer);
    link.free = std::max({link.free, ready, start}) + costs_.transfer;
    link.arrivals.push_back(link.free);
    return link.free;
  }

  // Peers' lists agree in order: the next receive matches the next send.
  bool receive(int rank, const Action& action, double& arrival, TimedAction& timed) {
    Link& link = link_of(action.peer, rank);
    // Not sent yet: its reader waits.
    if (link.taken == link.arrivals.size()) return false;
    arrival = link.arrivals[link.taken++];
    timed.end = std::max(timed.start, arrival);
    return true;
  }

  struct Link {
    double free = 0;
    std::vector<double> arrivals;
    size_t taken = 0;
  };
  Link& link_of(int from, int to) {
    return links_[static_cast<size_t>(from) * schedule_.ranks.size() + static_cast<size_t>(to)];
  }

  void finish(int rank) {
    const auto r = static_cast<size_t>(rank);
    const std::vector<int> live = live_activations(schedule_.ranks[r]);
    double held = 0;
    for (size_t index = 0; index < live.size(); ++index) {
      TimedAction& timed = result_.ranks[r][index];
      const int before = index == 0 ? 0 : live[index - 1];
      const bool is_forward = timed.action.kind == ActionKind::kForward;
      const auto stage = static_cast<size_t>(shape_.stage_of(rank, timed.action.chunk));
      const double size = costs_.activations.empty() ? 1 : costs_.activations[stage];
      timed.live = live[index];
      // A forward holds its activations while running, a backward until its end.
      timed.activations = held + (is_forward ? size : 0);
      if (live[index] > before) held += size;
      if (live[index] < before) held -= size;
      int& peak_live = result_.peak_live[r];
      peak_live = std::max({peak_live, live[index], is_forward ? before + 1 : before});
      result_.peak_activations[r] = std::max(result_.peak_activations[r], timed.activations);
      result_.makespan = std::max(result_.makespan, timed.end);
    }
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  Moments outputs_, input_gradients_, received_forward_, received_backward_;
  std::vector<double> now_;
  std::vector<Link> links_;  // by (from, to)
  PipelineSimulation result_;
};

}  // namespace

double PipelineSimulation::bubble_time() const {
  return busy.empty() ? 0 : makespan - *std::min_element(busy.begin(), busy.end());
}

double PipelineSimulation::bubble_fraction() const { return makespan > 0 ? bubble_time() / makespan : 0; }

PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  check_pipeline_schedule(schedule);
  return simulate_checked_pipeline(schedule, costs);
}

PipelineSimulation simulate_checked_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  const auto num_stages = static_cast<size_t>(schedule.shape.num_stages());
  MEGALITH_CHECK(costs.stages.size() == num_stages, "times of {} stages for {}", costs.stages.size(), num_stages);
  MEGALITH_CHECK(costs.activations.empty() || costs.activations.size() == num_stages, "activations of {} stages for {}",
                 costs.activations.size(), num_stages);
  MEGALITH_CHECK(costs.microbatches.empty() ||
                     std::ssize(costs.microbatches) == schedule.shape.num_microbatches,
                 "shares of {} microbatches for {}", costs.microbatches.size(), schedule.shape.num_microbatches);
  MEGALITH_CHECK(costs.transfer >= 0, "a transfer takes {}", costs.transfer);
  for (const StageTimes& times : costs.stages) {
    MEGALITH_CHECK(times.forward >= 0 && times.input_backward >= 0 && times.weight_backward >= 0,
                   "a stage takes {}, {}, {}", times.forward, times.input_backward, times.weight_backward);
  }
  return Simulator(schedule, costs).run();
}

}  // namespace megalith
