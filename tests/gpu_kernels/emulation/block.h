// One block of an emulated launch: its threads, its shared memory, and what they wait for.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu_kernels/emulation/fiber.h"
#include "gpu_kernels/emulation/machine.h"
#include "gpu_kernels/emulation/shared_memory.h"

namespace megalith::gpu_emulation {

enum class ThreadState { kReady, kAtBarrier, kAtExchange, kEnded };

struct Thread {
  Fiber fiber;
  class Block* of = nullptr;
  Place place;
  unsigned number = 0;
  ThreadState state = ThreadState::kEnded;
  Line line;  // of its wait
  ExchangeKind kind = ExchangeKind::kShuffle;
  uint64_t word = 0;  // given to the exchange, then taken from it
  int source_lane = 0;
  unsigned num_barriers = 0, num_exchanges = 0;  // that it has come to
};

// Runs the fiber until it waits or ends (machine.cc).
void resume(Thread& thread);

// Kept by a host thread from launch to launch: fibers are dear to make.
class Block {
 public:
  // Shared by all blocks of a launch.
  struct Launch {
    dim3 grid, block;
    unsigned num_threads = 0;
    Settings settings;
    size_t shared_bytes = 0;
    const std::function<void()>* thread = nullptr;
  };

  void begin_launch(const Launch& launch);
  // `identity`: as which of its threads each fiber runs, to ThreadSanitizer. Empty, or why it was refused.
  std::string run(uint64_t number, size_t identity, std::mt19937_64& random);
  void end_launch();

  // In a fiber.
  void wait_at_barrier(Thread& thread, Line line);
  uint64_t exchange(Thread& thread, ExchangeKind kind, uint64_t word, int source_lane, Line line);
  void* shared_array(Thread& thread, const void* declaration, size_t bytes);
  void* dynamic_shared() { return dynamic_; }
  // Ends the launch. The text, with `bytes` for %zu, is made outside: memory that a fiber allocates is never freed.
  [[noreturn]] void refuse(Thread& thread, const char* reason, size_t bytes);
  int wave_size() const { return launch_.settings.wave_size; }

 private:
  void begin_threads(uint64_t number, size_t identity);
  void run_until_barrier(std::mt19937_64& random);
  bool finish_exchange(unsigned first, unsigned last);
  bool finish_barrier();
  void abandon();
  static void thread_main(void* thread);

  Launch launch_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<unsigned> order_;
  SharedMemory shared_;
  void* dynamic_ = nullptr;
  std::string refusal_;
  const char* refusal_of_thread_ = nullptr;
  size_t refused_bytes_ = 0;

  // Addresses that ThreadSanitizer is told of, in turns: a thread that has left one meeting may come to the next before
  // another has left the first, which must not see that. Barriers and waves have some of their own in each block that
  // is at once with others: one of all blocks would put these in an order that a chip does not keep.
  struct Meeting {
    char barriers[2] = {};
    char waves[32][2] = {};
  };
  std::vector<std::unique_ptr<Meeting>> meetings_;  // by identity
  Meeting* meeting_ = nullptr;
  char launched_ = 0, ended_ = 0;
};

}  // namespace megalith::gpu_emulation
