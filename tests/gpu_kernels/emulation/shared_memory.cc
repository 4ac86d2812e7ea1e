#include "gpu_kernels/emulation/shared_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace megalith::gpu_emulation {
namespace {

#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
constexpr bool kHasRegion = true;
#else
constexpr bool kHasRegion = false;
#endif
constexpr size_t kRegionBytes = 256 << 20;
constexpr size_t kAlignment = 64;

}  // namespace

SharedMemory::~SharedMemory() {
  end_block();
  if (region_ != nullptr) munmap(region_, kRegionBytes);
}

void SharedMemory::begin_launch() {
  if (!kHasRegion || region_ != nullptr) return;
  void* memory =
      mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  region_ = static_cast<char*>(memory);
}

void* SharedMemory::array(const void* declaration, size_t bytes, size_t most_bytes) {
  for (const Array& known : arrays_) {
    if (known.declaration == declaration) return known.memory;
  }
  used_bytes_ += (bytes + 15) / 16 * 16;
  if (used_bytes_ > most_bytes) return nullptr;
  void* memory = allocate(bytes);
  // By hand: memset would be seen by ThreadSanitizer.
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(memory)[i] = static_cast<char>(0xFF);
  arrays_.push_back({declaration, memory, bytes});
  return memory;
}

void* SharedMemory::allocate(size_t bytes) {
  if (!kHasRegion) {
    // Exactly this size, so that AddressSanitizer knows its end.
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  char* memory = region_ + region_used_;
  region_used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (region_used_ > kRegionBytes) std::abort();  // a test under ThreadSanitizer has too many blocks
  return memory;
}

void SharedMemory::end_block() {
  if (!kHasRegion) {
    for (const Array& known : arrays_) std::free(known.memory);
  }
  arrays_.clear();
  used_bytes_ = 0;
}

void SharedMemory::end_launch() {
  end_block();
  region_used_ = 0;
}

}  // namespace megalith::gpu_emulation
