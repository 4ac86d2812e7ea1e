// Memory for tables of megabytes that are read at random: in huge pages, where the system has them, most look-ups find
// their page's address in the processor.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace megalith {

template <typename T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <typename U>
  HugePageAllocator(const HugePageAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    if (count * sizeof(T) < kHugePage) return std::allocator<T>().allocate(count);
    const size_t num_bytes = (count * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = std::aligned_alloc(kHugePage, num_bytes);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, num_bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < kHugePage) {
      std::allocator<T>().deallocate(memory, count);
    } else {
      std::free(memory);
    }
  }
  bool operator==(const HugePageAllocator&) const { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
};

template <typename T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace megalith
