#include "device/block_arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <iterator>
#include <limits>

namespace megalith {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kGrowth = 64 << 20;
constexpr size_t kLargest = std::numeric_limits<size_t>::max() / 2;  // sizes are rounded up

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// A line more: equally large tensors, read together, would otherwise all begin in one set of a cache.
size_t span_of(size_t num_bytes) { return round_up(num_bytes, kCacheLine) + kCacheLine; }

}  // namespace

BlockArena::~BlockArena() {
  for (const auto& [begin, num_bytes] : mappings_) ::munmap(begin, num_bytes);
}

void* BlockArena::allocate(size_t num_bytes) {
  if (num_bytes > kLargest) return nullptr;
  const size_t size = span_of(num_bytes);
  const std::scoped_lock lock(mutex_);
  const auto best_fit = [&] { return free_by_size_.lower_bound({size, nullptr}); };
  auto found = best_fit();
  if (found == free_by_size_.end()) {
    // The lowest free span grows, if the system maps below it.
    const bool is_at_edge = !free_.empty() && free_.begin()->first == mappings_.begin()->first;
    if (is_at_edge && grow(size - free_.begin()->second)) found = best_fit();
    if (found == free_by_size_.end() && grow(size)) found = best_fit();
    if (found == free_by_size_.end()) return nullptr;
  }
  const auto [found_size, begin] = *found;
  remove_free(free_.find(begin));
  if (found_size > size) add_free(begin, found_size - size);
  char* const block = begin + (found_size - size);
  used_.emplace(block, num_bytes);
  return block;
}

size_t BlockArena::release(void* block) {
  const std::scoped_lock lock(mutex_);
  const auto found = used_.find(static_cast<char*>(block));
  if (found == used_.end()) return 0;
  const auto [begin, num_bytes] = *found;
  used_.erase(found);
  add_free(begin, span_of(num_bytes));
  return num_bytes;
}

size_t BlockArena::mapped_bytes() const {
  const std::scoped_lock lock(mutex_);
  size_t sum = 0;
  for (const auto& [begin, num_bytes] : mappings_) sum += num_bytes;
  return sum;
}

bool BlockArena::grow(size_t num_bytes) {
  num_bytes = round_up(num_bytes, kGrowth);
  // Next to the lowest mapping, if there are as many addresses below it.
  const uintptr_t lowest = mappings_.empty() ? 0 : reinterpret_cast<uintptr_t>(mappings_.begin()->first);
  char* const wanted = lowest > num_bytes ? mappings_.begin()->first - num_bytes : nullptr;
  void* const mapping = ::mmap(wanted, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return false;
  // No huge pages: on a machine whose memory is in use, clearing room for them took longer than they save.
  mappings_.emplace(static_cast<char*>(mapping), num_bytes);
  add_free(static_cast<char*>(mapping), num_bytes);
  return true;
}

void BlockArena::add_free(char* begin, size_t num_bytes) {
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      num_bytes += before->second;
      remove_free(before);
    }
  }
  if (after != free_.end() && begin + num_bytes == after->first) {
    num_bytes += after->second;
    remove_free(after);
  }
  free_.emplace(begin, num_bytes);
  free_by_size_.emplace(num_bytes, begin);
}

void BlockArena::remove_free(std::map<char*, size_t>::iterator span) {
  free_by_size_.erase({span->second, span->first});
  free_.erase(span);
}

}  // namespace megalith
