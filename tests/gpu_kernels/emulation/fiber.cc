#include "gpu_kernels/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(MEGALITH_EMULATION_ADDRESS_SANITIZER)
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old, size_t* size_old);
void __asan_unpoison_memory_region(const void* address, size_t size);
}
#define FOR_ADDRESS_SANITIZER(...) __VA_ARGS__
#else
#define FOR_ADDRESS_SANITIZER(...)
#endif

#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#define FOR_THREAD_SANITIZER(...) __VA_ARGS__
#else
#define FOR_THREAD_SANITIZER(...)
#endif

// Pushes what the System V calling convention asks a function to keep, stores the stack pointer in *save, takes `load`
// in its place and returns there.
extern "C" void megalith_switch_stack(void** save, void* load);
asm(R"(
.text
.globl megalith_switch_stack
.hidden megalith_switch_stack
.type megalith_switch_stack,@function
megalith_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size megalith_switch_stack,.-megalith_switch_stack
)");

namespace megalith::gpu_emulation {
namespace {

constexpr int kKeptRegisters = 6;
constexpr size_t kStackBytes = 256 << 10;  // the reports of sanitizers are deep
// "Do not order the two": only acquire and release do.
[[maybe_unused]] constexpr unsigned kUnordered = 1;

thread_local Fiber* starting = nullptr;

}  // namespace

Fiber::~Fiber() {
  abandon();
  for (const Identity& identity : identities_) munmap(identity.stack, kStackBytes);
}

void Fiber::start(Body body, void* argument, size_t identity) {
  now_ = identity_of(identity);
  body_ = body;
  argument_ = argument;
  // As megalith_switch_stack leaves a stack, aligned as after a call: a null return address ends backtraces.
  auto* top = reinterpret_cast<uintptr_t*>(now_.stack + kStackBytes);
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(&main_function);
  for (int i = 0; i < kKeptRegisters; ++i) *--top = 0;
  stack_top_ = top;
}

Fiber::Identity& Fiber::identity_of(size_t number) {
  while (identities_.size() <= number) {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    identities_.push_back({.stack = static_cast<char*>(memory)});
  }
  Identity& identity = identities_[number];
  FOR_THREAD_SANITIZER(if (identity.sanitizer_thread == nullptr) identity.sanitizer_thread = __tsan_create_fiber(0);)
  return identity;
}

void Fiber::resume() {
  starting = this;
  FOR_THREAD_SANITIZER(caller_thread_ = __tsan_get_current_fiber();
                       __tsan_switch_to_fiber(now_.sanitizer_thread, kUnordered);)
  FOR_ADDRESS_SANITIZER(__sanitizer_start_switch_fiber(&caller_fake_stack_, now_.stack, kStackBytes);)
  megalith_switch_stack(&caller_top_, stack_top_);
  FOR_ADDRESS_SANITIZER(__sanitizer_finish_switch_fiber(caller_fake_stack_, nullptr, nullptr);)
}

void Fiber::suspend() { leave(false); }

void Fiber::leave([[maybe_unused]] bool for_ever) {
  FOR_THREAD_SANITIZER(__tsan_switch_to_fiber(caller_thread_, kUnordered);)
  FOR_ADDRESS_SANITIZER(
      __sanitizer_start_switch_fiber(for_ever ? nullptr : &own_fake_stack_, caller_stack_, caller_stack_bytes_);)
  megalith_switch_stack(&stack_top_, caller_top_);
  FOR_ADDRESS_SANITIZER(__sanitizer_finish_switch_fiber(own_fake_stack_, &caller_stack_, &caller_stack_bytes_);)
}

void Fiber::main_function() {
  Fiber& fiber = *starting;
  FOR_ADDRESS_SANITIZER(__sanitizer_finish_switch_fiber(nullptr, &fiber.caller_stack_, &fiber.caller_stack_bytes_);)
  fiber.body_(fiber.argument_);
  fiber.leave(true);
  std::abort();  // an ended fiber is started again, never resumed
}

void Fiber::abandon() {
  // Its calls have not returned: their variables' surroundings are still marked, and its threads still inside of them.
  for ([[maybe_unused]] Identity& identity : identities_) {
    FOR_ADDRESS_SANITIZER(__asan_unpoison_memory_region(identity.stack, kStackBytes);)
    FOR_THREAD_SANITIZER(if (identity.sanitizer_thread != nullptr) __tsan_destroy_fiber(identity.sanitizer_thread);)
    identity.sanitizer_thread = nullptr;
  }
}

}  // namespace megalith::gpu_emulation
