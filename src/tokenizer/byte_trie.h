// A set of byte strings that answers "which of them begin this text?": for vocabularies, added tokens, user symbols.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/huge_pages.h"

namespace megalith {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;

  ByteTrie();
  // A repeated key's last value wins. value must not be negative.
  void insert(std::string_view key, int32_t value);

  // One byte further: the node, kNone if no key goes on so, and the value of the key that ends there, or -1.
  struct Step {
    uint32_t node = kNone;
    int32_t value = -1;
  };
  Step step(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return roots_[byte];
    const uint64_t key = uint64_t{node} << 8 | byte;
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].step;
      if (slots_[slot].key == kFree) return {};
    }
  }

  struct Match {
    int32_t value = -1;
    size_t length = 0;
  };
  // The longest key that is a prefix of `text`; value -1 if there is none.
  Match longest_prefix(std::string_view text) const;
  bool is_empty() const { return num_nodes_ == 1; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Step step;
  };
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15 >> 32) & mask_; }
  void put(uint64_t key, Step step);

  std::vector<Step> roots_;     // from the root, by byte
  HugePageVector<Slot> slots_;  // all other edges, open addressing
  size_t mask_ = 0, num_edges_ = 0;
  uint32_t num_nodes_ = 1;
};

}  // namespace megalith
