// How many threads an operator uses on the CPU. The number belongs to the process, so main functions set it, and
// nothing else does.
#pragma once

#include <cstdint>
#include <optional>

namespace megalith {

class OptionVisitor;

struct ThreadOptions {
  std::optional<int64_t> num_threads;  // unset: see default_num_threads()

  void visit(OptionVisitor& visitor);
};

// Cores this process may use: distinct physical cores among the processors it is allowed to run on, at most what a
// container's quota leaves. Hyper-threads share the units that matrix products keep busy, so they do not count.
int usable_cores();

// OMP_NUM_THREADS if set; otherwise the usable cores shared by the ranks of this machine, at least 1. torchrun sets
// OMP_NUM_THREADS=1 when several ranks start: on a CPU, pass --num_threads.
int default_num_threads(int ranks_on_this_machine);

// For main functions, before the first operator runs. Returns the number set.
int set_num_threads(const ThreadOptions& options, int ranks_on_this_machine);

// One thread in this process while it lives, and in every thread started meanwhile: for ranks as threads.
class SingleThreadedScope {
 public:
  SingleThreadedScope();
  ~SingleThreadedScope();
  SingleThreadedScope(const SingleThreadedScope&) = delete;
  SingleThreadedScope& operator=(const SingleThreadedScope&) = delete;

 private:
  int previous_;
};

}  // namespace megalith
