// The shared memory of one emulated block: arrays by their declarations, filled with set bits, which are NaN to a
// float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace megalith::gpu_emulation {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  // Outside of fibers: to ThreadSanitizer, what a fiber maps belongs to it.
  void begin_launch();
  // The array of this declaration, the same for all that ask; nullptr when the block has no more memory.
  void* array(const void* declaration, size_t bytes, size_t most_bytes);
  void end_block();
  void end_launch();

 private:
  void* allocate(size_t bytes);

  struct Array {
    const void* declaration;
    void* memory;
    size_t bytes;
  };
  std::vector<Array> arrays_;
  size_t used_bytes_ = 0;  // by this block

  // Under ThreadSanitizer every block of a launch has memory of its own in one region: malloc and free would count as
  // accesses of whichever fiber runs.
  char* region_ = nullptr;
  size_t region_used_ = 0;
};

}  // namespace megalith::gpu_emulation
