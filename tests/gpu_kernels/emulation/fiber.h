// A function on a stack of its own that takes turns with its resumer, all on one processor thread. x86-64 only.
//
// AddressSanitizer is told of the change of stacks. Under ThreadSanitizer a fiber is a thread of its own: what two
// fibers do is unordered unless they say so (synchronisation.h).
#pragma once

#include <cstddef>
#include <vector>

namespace megalith::gpu_emulation {

class Fiber {
 public:
  using Body = void (*)(void*);

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // The next resume() begins body(argument). `identity`, from 0 up: as which of its threads, with a stack of its own,
  // it runs to ThreadSanitizer.
  void start(Body body, void* argument, size_t identity);
  // Runs it until it suspends itself or ends.
  void resume();
  // In the fiber: back to who resumed it.
  void suspend();
  // A fiber that will never be resumed: its stack may be used again.
  void abandon();

 private:
  [[noreturn]] static void main_function();
  void leave(bool for_ever);

  struct Identity {
    char* stack = nullptr;
    void* sanitizer_thread = nullptr;
  };
  Identity& identity_of(size_t number);

  std::vector<Identity> identities_;
  Identity now_;
  void* stack_top_ = nullptr;   // of the fiber while another runs
  void* caller_top_ = nullptr;  // of who resumed it
  Body body_ = nullptr;
  void* argument_ = nullptr;

  // For AddressSanitizer: addresses of its stacks of copied variables and of the caller's stack.
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;

  // For ThreadSanitizer.
  void* caller_thread_ = nullptr;
};

}  // namespace megalith::gpu_emulation
