// Memory use, and malloc settings.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace megalith {

struct MemoryStats {
  // Tensors. On the CPU those since manage_cpu_memory(), or 0.
  int64_t allocated_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  // With free blocks. On the CPU, the resident set.
  int64_t reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  // All processes'. On the CPU: this process's resident set, and the machine's memory or container's limit.
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;

  // The iteration line's `mem usages`.
  double used_fraction() const {
    return total_bytes > 0 ? static_cast<double>(used_bytes) / static_cast<double>(total_bytes) : 0;
  }
};

MemoryStats memory_stats(const c10::Device& device);

// Updates only an accelerator's allocator counts, at no cost.
void update_allocator_stats(MemoryStats& stats, const c10::Device& device);

// The CPU's resident peak restarts only if /proc/self/clear_refs is writable.
void reset_peak_memory(const c10::Device& device);

// Counts future tensors on the CPU and keeps large ones together (device/block_arena.h), permanently. For main
// functions.
void manage_cpu_memory();

// Makes malloc keep freed memory: page faults take half of a naive CPU step. 1.8 times faster, resident peak 15 %
// higher. Call first in main. Needs glibc; limits set in the environment (MALLOC_…_, GLIBC_TUNABLES) stay.
void tune_malloc_for_training();

}  // namespace megalith
