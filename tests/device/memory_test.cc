// Memory statistics: what tensors take is counted, and peaks are kept.
#include "device/memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "device/block_arena.h"
#include "device/device.h"

namespace megalith {
namespace {

const c10::Device kCpu(c10::kCPU);
constexpr int64_t kMiB = 1 << 20;
// A block is rounded up to malloc's granularity and LibTorch's alignment.
constexpr int64_t kRounding = 4096;

TEST(Memory, CountsTensorsAndTheirPeak) {
  const at::Tensor older = at::zeros({1000});  // not counted, and may be freed afterwards
  manage_cpu_memory();
  manage_cpu_memory();  // once more changes nothing
  reset_peak_memory(kCpu);
  const int64_t before = memory_stats(kCpu).allocated_bytes;
  {
    const at::Tensor a = at::zeros({4 * kMiB}, at::kByte);
    EXPECT_NEAR(memory_stats(kCpu).allocated_bytes - before, 4 * kMiB, kRounding);
    { const at::Tensor b = at::zeros({8 * kMiB}, at::kByte); }
    EXPECT_NEAR(memory_stats(kCpu).allocated_bytes - before, 4 * kMiB, kRounding);
  }
  const MemoryStats after = memory_stats(kCpu);
  EXPECT_EQ(after.allocated_bytes, before);
  EXPECT_NEAR(after.peak_allocated_bytes - before, 12 * kMiB, 2 * kRounding);
  reset_peak_memory(kCpu);
  EXPECT_EQ(memory_stats(kCpu).peak_allocated_bytes, before);
}

TEST(Memory, KeepsAlignmentAndResizing) {
  manage_cpu_memory();
  const int64_t before = memory_stats(kCpu).allocated_bytes;
  for (const int64_t size : {0, 1, 63, 64, 65, 4097}) {
    at::Tensor tensor = at::ones({size}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64, 0u) << size;
    tensor.resize_({2 * size + 1}).fill_(7);
    EXPECT_EQ(tensor.sum().item<int64_t>(), 7 * (2 * size + 1));
  }
  EXPECT_EQ(memory_stats(kCpu).allocated_bytes, before);
}

TEST(Memory, CountsFromManyThreads) {
  manage_cpu_memory();
  const int64_t before = memory_stats(kCpu).allocated_bytes;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 200; ++j) (void)at::ones({j * 37 + 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_stats(kCpu).allocated_bytes, before);
}

TEST(Memory, ProcessAndMachineAreSeen) {
  const at::Tensor touched = at::ones({64 * kMiB}, at::kByte);
  const MemoryStats stats = memory_stats(kCpu);
  EXPECT_GE(stats.reserved_bytes, 64 * kMiB);
  EXPECT_GE(stats.peak_reserved_bytes, stats.reserved_bytes);
  EXPECT_GT(stats.total_bytes, stats.used_bytes);
  EXPECT_GT(stats.used_fraction(), 0);
  EXPECT_LT(stats.used_fraction(), 1);
}

TEST(BlockArena, MergesNeighboursAndTakesTheBestFit) {
  BlockArena arena;
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(arena.allocate(4 * kMiB));
  const size_t mapped = arena.mapped_bytes();
  EXPECT_EQ(mapped, size_t{64 * kMiB});
  EXPECT_EQ(arena.release(blocks[7]), size_t{4 * kMiB});
  EXPECT_EQ(arena.allocate(4 * kMiB - 10), blocks[7]) << "rather than the larger rest";
  for (const int i : {3, 5, 4}) EXPECT_EQ(arena.release(blocks[static_cast<size_t>(i)]), size_t{4 * kMiB});
  // A line of 64 bytes follows each. The arena fills downwards, so the last of the three is the first in memory.
  EXPECT_EQ(arena.allocate(12 * kMiB + 2 * 64), blocks[5]);
  EXPECT_EQ(arena.mapped_bytes(), mapped);
  // More than there is: the free end of the mapping is not wasted.
  EXPECT_NE(arena.allocate(70 * kMiB), nullptr);
  EXPECT_LE(arena.mapped_bytes(), mapped + 128 * kMiB);
  int foreign = 0;
  EXPECT_EQ(arena.release(&foreign), 0u);
  for (const size_t too_large : {size_t{1} << 60, SIZE_MAX / 2, SIZE_MAX - 1}) {
    EXPECT_EQ(arena.allocate(too_large), nullptr);
  }
}

TEST(Memory, RawBlocksOfBothKindsGoBack) {
  manage_cpu_memory();
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  const int64_t before = memory_stats(kCpu).allocated_bytes;
  for (const size_t num_bytes : {size_t{100}, BlockArena::kSmallest + 1}) {
    void* const block = allocator.raw_allocate(num_bytes);
    EXPECT_GE(memory_stats(kCpu).allocated_bytes - before, static_cast<int64_t>(num_bytes));
    allocator.raw_deallocate(block);
    EXPECT_EQ(memory_stats(kCpu).allocated_bytes, before);
  }
}

TEST(BlockArena, BlocksOfManyThreadsAreAlignedAndDoNotOverlap) {
  BlockArena arena;
  const auto use = [&](uint64_t key) {
    std::vector<std::pair<char*, size_t>> blocks;
    for (uint64_t i = 0; i < 400; ++i) {
      const size_t size = BlockArena::kSmallest + random_word_at(key, i) % 100'000;
      auto* const block = static_cast<char*>(arena.allocate(size));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      std::memset(block, static_cast<int>(key), size);
      blocks.emplace_back(block, size);
      if (blocks.size() < 20) continue;
      const auto [old, old_size] = blocks[random_word_at(key, i, 1) % 20];
      EXPECT_EQ(std::count(old, old + old_size, static_cast<char>(key)), static_cast<int64_t>(old_size));
      std::erase(blocks, std::pair(old, old_size));
      EXPECT_EQ(arena.release(old), old_size);
    }
  };
  std::thread other(use, 1);
  use(2);
  other.join();
}

// Buffers of other sizes each step, as routing makes them, among tensors that stay.
TEST(Memory, StaysNearTheTensorsWhenSizesChange) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory";
#endif
  manage_cpu_memory();
  const int64_t resident = memory_stats(kCpu).reserved_bytes, allocated = memory_stats(kCpu).allocated_bytes;
  reset_peak_memory(kCpu);
  const auto touched = [](int64_t num_bytes) {
    at::Tensor tensor = at::empty({num_bytes}, at::kByte);
    std::memset(tensor.mutable_data_ptr(), 1, static_cast<size_t>(num_bytes));  // in one thread
    return tensor;
  };
  std::vector<at::Tensor> kept;
  for (uint64_t step = 0; step < 12; ++step) {
    std::vector<at::Tensor> of_step;
    for (uint64_t i = 0; i < 16; ++i) {
      const int64_t size = kMiB / 2 + random_word_at(step, i) % (4 * kMiB);
      const at::Tensor passing = touched(size / 2);
      of_step.push_back(touched(size));
      if (i == 7) kept.push_back(touched(kMiB / 4));
    }
  }
  const MemoryStats after = memory_stats(kCpu);
  const auto tensors = static_cast<double>(after.peak_allocated_bytes - allocated);
  EXPECT_LT(static_cast<double>(after.reserved_bytes - resident), 1.2 * tensors);  // tuned malloc: 1.28
}

// Last in this file: it changes malloc for the rest of the process.
TEST(Memory, TunedMallocReusesPagesWithoutFaults) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer brings a malloc of its own, which has no such settings";
#endif
  tune_malloc_for_training();
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  // glibc's aligned allocation cuts small pieces off that its thread cache keeps, up to seven of a size; until then,
  // blocks do not merge to the size asked for next.
  for (int i = 0; i < 16; ++i) (void)at::ones({32 * kMiB}, at::kByte);
  const int64_t before = faults();
  for (int i = 0; i < 8; ++i) (void)at::ones({32 * kMiB}, at::kByte);
  // Fresh mappings would fault on 8 × 8192 pages.
  EXPECT_LT(faults() - before, 1000);
}

TEST(Memory, OfAnAcceleratorComesFromItsAllocator) {
  if (accelerator_count() == 0) GTEST_SKIP() << "no accelerator here";
  const c10::Device device = select_device(DeviceChoice::kGpu, 0);
  const at::Tensor tensor = at::zeros({4 * kMiB}, at::TensorOptions().dtype(at::kByte).device(device));
  const MemoryStats stats = memory_stats(device);
  EXPECT_GE(stats.allocated_bytes, 4 * kMiB);
  EXPECT_GE(stats.reserved_bytes, stats.allocated_bytes);
  EXPECT_GE(stats.used_bytes, stats.reserved_bytes);
  EXPECT_GT(stats.total_bytes, stats.used_bytes);
}

}  // namespace
}  // namespace megalith
