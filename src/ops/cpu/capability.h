// Kernels compiled per instruction set, chosen at run time.
//
// On x86-64, cpu.cc and cpu_*.cc are compiled with CPU_CAPABILITY as DEFAULT, AVX2 and AVX512 (Kernels.cmake), as in
// ATen, whose at::vec is then vectorised, in the namespace megalith::ops::cpu::CPU_CAPABILITY. A header shared with the
// caller declares all three:
//
//   MEGALITH_DECLARE_CPU_KERNEL(scale, (const float* x, int64_t count, float factor, float* y));
//
// and the caller takes ATen's choice, which ATEN_CPU_CAPABILITY=default|avx2 lowers:
//
//   MEGALITH_CPU_KERNEL(scale)(x, count, factor, y);
//
// Kernel files include little: the linker may keep an inline function's copy with their instructions for the whole
// program.
#pragma once

namespace megalith::ops::cpu {

enum class Capability { kDefault, kAvx2, kAvx512 };

Capability current_capability();

#if defined(__x86_64__)

#define MEGALITH_DECLARE_CPU_KERNEL(name, parameters) \
  namespace DEFAULT {                                 \
  void name parameters;                               \
  }                                                   \
  namespace AVX2 {                                    \
  void name parameters;                               \
  }                                                   \
  namespace AVX512 {                                  \
  void name parameters;                               \
  }                                                   \
  static_assert(true)

#define MEGALITH_CPU_KERNEL(name)                                                                               \
  (::megalith::ops::cpu::choose_kernel(&::megalith::ops::cpu::DEFAULT::name, &::megalith::ops::cpu::AVX2::name, \
                                       &::megalith::ops::cpu::AVX512::name))

template <typename Kernel>
Kernel* choose_kernel(Kernel* by_default, Kernel* avx2, Kernel* avx512) {
  switch (current_capability()) {
    case Capability::kAvx512:
      return avx512;
    case Capability::kAvx2:
      return avx2;
    default:
      return by_default;
  }
}

#else

#define MEGALITH_DECLARE_CPU_KERNEL(name, parameters) \
  namespace DEFAULT {                                 \
  void name parameters;                               \
  }                                                   \
  static_assert(true)

#define MEGALITH_CPU_KERNEL(name) (&::megalith::ops::cpu::DEFAULT::name)

#endif

}  // namespace megalith::ops::cpu
