// The merges of byte-pair encoding, and merging: merges the neighbouring pair of lowest rank, leftmost first, until no
// pair has a rank. Source: Sennrich et al. 2016; rules as in Hugging Face's `tokenizers`.
//
// Few symbols are merged by scanning, many with a queue, so that a document without blanks stays O(n log n). The two
// are compared in tests/tokenizer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tokenizer/huge_pages.h"

namespace megalith {

struct Merge {
  uint32_t rank = UINT32_MAX;  // UINT32_MAX: the pair does not merge
  int32_t id = -1;
};

// (left id, right id) → merge, by open addressing. Most pairs do not merge: a filter of a bit a pair, which the nearer
// caches hold, rules nearly all of these out.
class MergeTable {
 public:
  explicit MergeTable(size_t count)
      : mask_(std::bit_ceil(count + count / 2 + 2) - 1), slots_(mask_ + 1), filter_(std::bit_ceil(count / 8 + 2)) {}

  // At most `count` pairs, as given to the constructor. A repeated pair's last merge counts.
  void insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right), hash = hash_of(key);
    slots_[locate(key, hash)] = {key, merge};
    filter_[filter_word(hash)] |= filter_bit(hash);
  }
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right), hash = hash_of(key);
    return (filter_[filter_word(hash)] & filter_bit(hash)) == 0 ? Merge{} : slots_[locate(key, hash)].merge;
  }

  // Merges symbols[0 … size) in place and returns the number left; ends early when only `least` are left.
  size_t merge(int32_t* symbols, size_t size, size_t least = 1) const;
  // The two ways of merge(), for tests.
  size_t merge_by_scanning(int32_t* symbols, size_t size, size_t least = 1) const;
  size_t merge_by_queue(int32_t* symbols, size_t size, size_t least = 1) const;

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash_of(uint64_t key) { return key * 0x9E3779B97F4A7C15; }
  size_t filter_word(uint64_t hash) const { return hash >> (64 - std::countr_zero(filter_.size())); }
  static uint64_t filter_bit(uint64_t hash) { return uint64_t{1} << (hash >> 32 & 63); }
  size_t locate(uint64_t key, uint64_t hash) const {
    size_t slot = (hash >> 32) & mask_;
    while (slots_[slot].key != key && slots_[slot].key != UINT64_MAX) slot = (slot + 1) & mask_;
    return slot;
  }

  size_t mask_;
  HugePageVector<Slot> slots_;
  HugePageVector<uint64_t> filter_;
};

}  // namespace megalith
