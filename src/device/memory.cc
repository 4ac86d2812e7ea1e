#include "device/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "core/error.h"
#include "core/input_file.h"
#include "device/block_arena.h"

namespace megalith {
namespace {

// AddressSanitizer watches only malloc's blocks.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHasArena = false;
#else
constexpr bool kHasArena = true;
#endif

// Process-wide and permanent, like LibTorch's. Large blocks are the arena's, others LibTorch's allocator's: malloc is
// asked for their sizes, for a header would break alignment.
class CpuAllocator final : public c10::Allocator {
 public:
  static CpuAllocator& instance() {
    // Never destroyed: tensors may outlive main.
    static CpuAllocator& allocator = *new CpuAllocator(c10::GetCPUAllocator());
    return allocator;
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    if (kHasArena && num_bytes >= BlockArena::kSmallest) {
      if (void* const block = arena_.allocate(num_bytes)) {
        add(static_cast<int64_t>(num_bytes));
        return {block, block, &release_large, c10::Device(c10::kCPU)};
      }
    }
    c10::DataPtr data = inner_->allocate(num_bytes);
    // Blocks with their own context are another allocator's.
    if (data.get() == nullptr || data.get_context() != data.get()) return data;
    add(static_cast<int64_t>(malloc_usable_size(data.get())));
    void* const block = data.release_context();
    return {block, block, &release_small, data.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter() ? &release : nullptr; }
  void copy_data(void* dest, const void* src, size_t count) const override { default_copy_data(dest, src, count); }

  int64_t current() const { return current_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }

 private:
  explicit CpuAllocator(c10::Allocator* inner) : inner_(inner) {}

  static bool release_large(CpuAllocator& self, void* block) {
    const size_t num_bytes = self.arena_.release(block);
    self.current_.fetch_sub(static_cast<int64_t>(num_bytes), std::memory_order_relaxed);
    return num_bytes > 0;
  }
  static void release_large(void* block) { release_large(instance(), block); }
  // Without the arena's lock.
  static void release_small(void* block) {
    CpuAllocator& self = instance();
    self.current_.fetch_sub(static_cast<int64_t>(malloc_usable_size(block)), std::memory_order_relaxed);
    self.inner_->raw_deallocate(block);
  }
  // Blocks without their own deleter.
  static void release(void* block) {
    if (!release_large(instance(), block)) release_small(block);
  }

  void add(int64_t num_bytes) {
    const int64_t now = current_.fetch_add(num_bytes, std::memory_order_relaxed) + num_bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }

  c10::Allocator* inner_;
  BlockArena arena_;
  std::atomic<int64_t> current_{0}, peak_{0};
};

bool is_managing() {
  // Calling instance() would wrap whatever is current.
  return dynamic_cast<CpuAllocator*>(c10::GetCPUAllocator()) != nullptr;
}

// From "VmRSS:   1234 kB"; 0 if missing.
int64_t proc_bytes(const char* path, const std::string& key) {
  std::istringstream file(try_read_facts(path).value_or(""));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

int64_t cgroup_limit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::istringstream file(try_read_facts(path).value_or(""));
    int64_t limit = 0;  // unlimited: v2 says "max", v1 a huge number
    if (file >> limit && limit > 0) return limit;
  }
  return std::numeric_limits<int64_t>::max();
}

MemoryStats cpu_memory_stats() {
  MemoryStats stats;
  if (is_managing()) {
    stats.allocated_bytes = CpuAllocator::instance().current();
    stats.peak_allocated_bytes = CpuAllocator::instance().peak();
  }
  stats.reserved_bytes = proc_bytes("/proc/self/status", "VmRSS");
  stats.peak_reserved_bytes = proc_bytes("/proc/self/status", "VmHWM");
  stats.used_bytes = stats.reserved_bytes;
  stats.total_bytes = std::min(proc_bytes("/proc/meminfo", "MemTotal"), cgroup_limit());
  return stats;
}

}  // namespace

MemoryStats memory_stats(const c10::Device& device) {
  if (device.is_cpu()) return cpu_memory_stats();
  MemoryStats stats;
  update_allocator_stats(stats, device);
  const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(device.index());
  stats.used_bytes = static_cast<int64_t>(total_bytes - free_bytes);
  stats.total_bytes = static_cast<int64_t>(total_bytes);
  return stats;
}

void update_allocator_stats(MemoryStats& stats, const c10::Device& device) {
  MEGALITH_CHECK(!device.is_cpu(), "the CPU's allocator is asked with all else");
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingDeviceAllocator::DeviceStats device_stats = at::accelerator::getDeviceStats(device.index());
  stats.allocated_bytes = device_stats.allocated_bytes[kAll].current;
  stats.peak_allocated_bytes = device_stats.allocated_bytes[kAll].peak;
  stats.reserved_bytes = device_stats.reserved_bytes[kAll].current;
  stats.peak_reserved_bytes = device_stats.reserved_bytes[kAll].peak;
}

void reset_peak_memory(const c10::Device& device) {
  if (!device.is_cpu()) {
    at::accelerator::resetPeakStats(device.index());
    return;
  }
  if (is_managing()) CpuAllocator::instance().reset_peak();
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM (Linux 4.0)
}

void manage_cpu_memory() {
  if (is_managing()) return;
  // LibTorch's own has priority 0.
  c10::SetCPUAllocator(&CpuAllocator::instance(), /*priority=*/1);
}

void tune_malloc_for_training() {
#if defined(__GLIBC__)
  const auto is_free = [](const char* variable) {
    return std::getenv(variable) == nullptr && std::getenv("GLIBC_TUNABLES") == nullptr;
  };
  if (is_free("MALLOC_MMAP_MAX_")) mallopt(M_MMAP_MAX, 0);               // large blocks from the heap, too
  if (is_free("MALLOC_TRIM_THRESHOLD_")) mallopt(M_TRIM_THRESHOLD, -1);  // never return memory
  if (is_free("MALLOC_TOP_PAD_")) mallopt(M_TOP_PAD, 64 << 20);          // grow in large strides
#endif
}

}  // namespace megalith
