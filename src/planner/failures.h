// Months of a run on machines that fail: how much of the time becomes progress, and how often to save.
//
// Events are simulated one by one from a seed, so results repeat. Young's and Daly's optimum, sqrt(2 pause mtbf), is
// where the search for the best interval starts (Daly 2006, doi:10.1016/j.future.2004.11.016).
#pragma once

#include <cstdint>

namespace megalith {

class OptionVisitor;

struct FailureOptions {
  int64_t gpus = 16384;
  double days = 90;
  double gpu_mtbf_hours = 50'700;  // Llama 3's report: 419 unexpected interruptions in 54 days of 16,384 GPUs
  double checkpoint_s = 10;        // a save's pause
  double checkpoint_interval_s = 0;  // 0: the best
  double restart_s = 600;          // from a failure to the first step again
  int64_t replicas = 1;            // that go on without a lost one; 1: a failure stops all
  double replica_stall_s = 30;     // of the others
  double slow_gpu_mtbf_hours = 0;  // of a GPU; 0: none
  double slow_gpu_slowdown = 1.3, slow_gpu_s = 1800;  // until it is found
  int64_t seed = 1234;

  void visit(OptionVisitor& v);
};

struct Goodput {
  double interval_s = 0;   // between saves
  double effective = 0;    // share of the time that became progress, at the speed of the whole machine
  int64_t failures = 0;
  // Shares of the time.
  double saving = 0, lost_work = 0, restarting = 0, fewer_replicas = 0, stragglers = 0;
};

// Young and Daly.
double optimal_interval_s(const FailureOptions& options);
Goodput simulate_failures(const FailureOptions& options, double interval_s);
// The best of the intervals around Young's and Daly's.
Goodput find_best_interval(const FailureOptions& options);

}  // namespace megalith
