// The emulation's reports to ThreadSanitizer: a thread that acquires an address has seen everything done before its
// release. Nothing in other builds. The emulation itself is never compiled with a sanitizer: its own data is no part of
// the kernels.
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
