// Memory use, and allocator settings that avoid page faults in training steps.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace megalith {

struct MemoryStats {
  // Tensors, by the allocator. On the CPU, those since count_cpu_memory(); 0 without it.
  int64_t allocated_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  // The process's resident set on the CPU; on an accelerator the allocator's memory, including free blocks.
  int64_t reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  // The whole device, other processes included. On the CPU: the machine's memory, or a container's limit if lower, and
  // this process's resident set.
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;

  // The iteration line's `mem usages`: 1 - free / total.
  double used_fraction() const {
    return total_bytes > 0 ? static_cast<double>(used_bytes) / static_cast<double>(total_bytes) : 0;
  }
};

MemoryStats memory_stats(const c10::Device& device);

// Updates only what an accelerator's allocator counts, at no cost; the whole device's numbers stay.
void update_allocator_stats(MemoryStats& stats, const c10::Device& device);

// Restarts the peaks. The CPU's resident peak restarts only if the kernel lets a process reset it
// (/proc/self/clear_refs).
void reset_peak_memory(const c10::Device& device);

// Wraps LibTorch's CPU allocator in a counter, permanently. For main functions. Existing tensors are not counted.
void count_cpu_memory();

// Makes malloc keep freed memory, so only the first steps take page faults, otherwise half of a naive CPU step: 1.8
// times faster, with about 15 % more resident peak. Call it first in main. Needs glibc's allocator; limits set by the
// environment (MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_, MALLOC_MMAP_MAX_, GLIBC_TUNABLES) stay.
void tune_malloc_for_training();

}  // namespace megalith
