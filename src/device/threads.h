// CPU threads per operator: process-wide, for main functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith {

class OptionVisitor;

struct ThreadOptions {
  std::optional<int64_t> num_threads;  // unset: default_num_threads()

  void visit(OptionVisitor& visitor);
};

// Physical cores (hyper-threads share matrix units), within a container's quota.
int usable_cores();

// OMP_NUM_THREADS if set, else the usable cores divided among this machine's ranks. torchrun sets it to 1 for several
// ranks.
int default_num_threads(int ranks_on_this_machine);

// Call before the first operator. Returns the number set.
int set_num_threads(const ThreadOptions& options, int ranks_on_this_machine);

// Spinning while waiting is fastest with a processor each; sharing one it can cost a factor of twenty.
struct ProcessorShare {
  int threads = 1;
  int ranks = 1;           // on this machine, each with `threads`
  int processors = 1;      // available to this process
  double quota = 0;        // a container's, in processors; 0: unlimited
  double others_load = 0;  // other programs' runnable threads

  bool has_processor_for_each() const;
};
ProcessorShare processor_share(int threads, int ranks_on_this_machine);

// Makes waiting OpenMP threads sleep. libgomp reads OMP_WAIT_POLICY only when loaded; later it sleeps only while
// managing more threads than processors (GOMP_SPINCOUNT in its manual), so this makes it.
void let_waiting_threads_sleep();

// Call after set_num_threads(). Returns what was done; null if threads may spin or the environment decides.
std::optional<std::string> choose_thread_waiting(const ProcessorShare& share);

// For ranks as threads: covers threads started meanwhile.
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
