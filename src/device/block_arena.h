// Large blocks of memory from mappings of our own, kept and reused without page faults.
//
// The buffers of routed experts have other sizes every step. In malloc's heap, small blocks that live long keep free
// neighbours from merging, so new sizes find no room and the heap grows. Here are only large blocks: the best fit is
// taken and free neighbours merge (Knuth, The Art of Computer Programming 1, 2.5).
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace megalith {

class BlockArena {
 public:
  // Smaller blocks are malloc's.
  static constexpr size_t kSmallest = 64 << 10;

  BlockArena() = default;
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  // Aligned to 64 bytes; null if the system has no memory.
  void* allocate(size_t num_bytes);

  // Returns the bytes asked for; 0 if the block is not the arena's.
  size_t release(void* block);

  size_t mapped_bytes() const;

 private:
  using Span = std::pair<size_t, char*>;

  bool grow(size_t num_bytes);
  void add_free(char* begin, size_t num_bytes);
  void remove_free(std::map<char*, size_t>::iterator span);

  mutable std::mutex mutex_;
  std::map<char*, size_t> free_;  // by address, to merge
  std::set<Span> free_by_size_;
  std::unordered_map<char*, size_t> used_;  // bytes asked for
  std::map<char*, size_t> mappings_;
};

}  // namespace megalith
