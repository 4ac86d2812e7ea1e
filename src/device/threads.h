// The number of CPU threads per operator. It is process-wide, so only main functions set it.
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

// Physical cores this process may use, at most a container's quota. Hyper-threads share the units of matrix products,
// so they do not count.
int usable_cores();

// OMP_NUM_THREADS if set; otherwise the usable cores shared by the ranks of this machine, at least 1. torchrun sets
// OMP_NUM_THREADS=1 for several ranks: on a CPU, pass --num_threads.
int default_num_threads(int ranks_on_this_machine);

// For main functions, before the first operator runs. Returns the number set.
int set_num_threads(const ThreadOptions& options, int ranks_on_this_machine);

// Decides how OpenMP's threads wait: spinning is fastest if each has its own processor; on a shared one it steals time
// that others need, which can cost a factor of twenty.
struct ProcessorShare {
  int threads = 1;         // of operators in this process
  int ranks = 1;           // of this program on this machine, with as many threads each
  int processors = 1;      // that this process may run on
  double quota = 0;        // of a container, in processors; 0: no limit
  double others_load = 0;  // other programs' threads that run or want to

  bool has_processor_for_each() const;
};
ProcessorShare processor_share(int threads, int ranks_on_this_machine);

// Lets OpenMP's threads sleep instead of spin, from now on. libgomp reads OMP_WAIT_POLICY only when loaded; later it
// sleeps only while it manages more threads than there are processors (GOMP_SPINCOUNT in its manual), so this makes it.
void let_waiting_threads_sleep();

// For main functions, after set_num_threads(). Returns what was done, in words; nothing if threads may spin, or if
// OMP_WAIT_POLICY or GOMP_SPINCOUNT is set.
std::optional<std::string> choose_thread_waiting(const ProcessorShare& share);

// One thread in this process and in threads started meanwhile: for ranks as threads.
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
