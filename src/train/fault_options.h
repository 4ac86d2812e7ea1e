// Options for machine faults and loss spikes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class LossSpikeAction { kNone, kWarn, kSkip, kRollback };

// A run's answer to the loss of a rank.
enum class FaultTolerance { kNone, kReplicas, kRestart };

struct FaultOptions {
  FaultTolerance fault_tolerance = FaultTolerance::kNone;
  double fault_patience_s = 60;
  int64_t memory_checkpoint_interval = 20;
  int64_t check_determinism = 0;  // 0: off
#ifdef NDEBUG
  bool check_types = false;
#else
  bool check_types = true;
#endif
  LossSpikeAction loss_spike_action = LossSpikeAction::kNone;
  double loss_spike_threshold = 10;
  int64_t loss_spike_window = 64;
  int64_t loss_spike_max_rollbacks = 3;

  bool is_later_era = false;  // not an option: a rank was lost or joined since the start

  void visit(OptionVisitor& v);
  bool restarts() const { return fault_tolerance == FaultTolerance::kRestart; }
  // True if a step with a loss spike is not made.
  bool leaves_out_spikes() const {
    return loss_spike_action == LossSpikeAction::kSkip || loss_spike_action == LossSpikeAction::kRollback;
  }
};

}  // namespace megalith
