// How much memory is used, and the allocator settings that keep page faults out of a training step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace megalith {

struct MemoryStats {
  // Tensors, by the allocator. On the CPU, those since count_cpu_memory(); 0 without it.
  int64_t allocated_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  // What the process takes: its resident set on the CPU; on an accelerator what the allocator holds, free blocks
  // included.
  int64_t reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  // The whole device, other processes included. On the CPU: the machine's memory, or a container's limit if lower, and
  // this process's resident set.
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;

  // What the iteration line calls `mem usages`: 1 - free / total.
  double used_fraction() const {
    return total_bytes > 0 ? static_cast<double>(used_bytes) / static_cast<double>(total_bytes) : 0;
  }
};

MemoryStats memory_stats(const c10::Device& device);

// Only what the allocator of an accelerator counts, which costs nothing: the whole device's numbers stay.
void update_allocator_stats(MemoryStats& stats, const c10::Device& device);

// Peaks count from now on. The CPU's resident peak needs a kernel that lets a process reset it (/proc/self/clear_refs);
// elsewhere that one stays.
void reset_peak_memory(const c10::Device& device);

// Puts a counter around LibTorch's CPU allocator, for this process and for good; further calls do nothing. For main
// functions. Tensors that exist already are not counted.
void count_cpu_memory();

// Makes malloc keep freed memory, so that only the first steps take page faults, which are otherwise half of the time
// of a naive step on the CPU: 1.8 times faster, and the resident peak grows by about 15 %. Call it first in main,
// before any allocation. It does nothing unless the C library and the allocator are glibc's. A limit that the
// environment sets (MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_, MALLOC_MMAP_MAX_, GLIBC_TUNABLES) stays.
void tune_malloc_for_training();

}  // namespace megalith
