// The host's waits for the device: what it waited for, and the functions of ours that asked for it.
//
// A "period" runs from the end of one optimizer step to the end of the next (the range "optimizer", train/step.cc), so
// period 0 holds the start of the program and its first step, and each later one everything that a step costs.
//
// PRETEND_WAITS=FILE writes the counts at the end of the process: a line "period <tab> count <tab> what <tab> place".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith::pretend {

struct Wait {
  int64_t period;
  std::string what;   // "copy to the host", "aten::nonzero"
  std::string place;  // "Batch::to < TrainStep::accumulate": exported functions of ours, the innermost first
  int64_t count;
};

int64_t current_period();

// Counts one, unless the accelerator itself is at work on this thread.
void note_wait(const std::string& what);

// The counts so far, or since forget_waits().
std::vector<Wait> waits();
void forget_waits();

// While it lives, this thread's copies and operators are the accelerator's own.
class AtWork {
 public:
  AtWork();
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};
bool is_at_work();

}  // namespace megalith::pretend
