// How many threads an operator uses on the CPU. The number belongs to the process, so main functions set it, and
// nothing else does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

// What decides how OpenMP's threads wait for one another: spinning is quickest while each has a processor of its own,
// and on a shared one a thread spins away the time that another needs, which can cost a factor of twenty.
struct ProcessorShare {
  int threads = 1;         // that operators use in this process
  int ranks = 1;           // of this program on this machine, with as many threads each
  int processors = 1;      // that this process may run on
  double quota = 0;        // processors' worth of time that a container may use; 0: no limit
  double others_load = 0;  // threads of others that run or want to

  bool has_processor_for_each() const;
};
ProcessorShare processor_share(int threads, int ranks_on_this_machine);

// Lets OpenMP's threads sleep instead of spin, for the rest of this process. libgomp reads OMP_WAIT_POLICY when it is
// loaded, before main; later it does so by itself where it manages more threads than there are processors
// (GOMP_SPINCOUNT in its manual). So this makes it manage that many: they sleep from then on.
void let_waiting_threads_sleep();

// For main functions, after set_num_threads(). What was done, in words; nothing where threads may spin, or where
// OMP_WAIT_POLICY or GOMP_SPINCOUNT says what a person wants.
std::optional<std::string> choose_thread_waiting(const ProcessorShare& share);

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
