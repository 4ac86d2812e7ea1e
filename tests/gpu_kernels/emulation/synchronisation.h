// What the emulation says to ThreadSanitizer: whoever acquires an address has seen all that was done before it was
// released. Nothing in other builds. The emulation itself is never compiled with a sanitizer: what it keeps for itself
// is no part of the kernels.
#pragma once

#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace megalith::gpu_emulation {

inline void acquire([[maybe_unused]] void* address) {
#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
  __tsan_acquire(address);
#endif
}
inline void release([[maybe_unused]] void* address) {
#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
  __tsan_release(address);
#endif
}

}  // namespace megalith::gpu_emulation
