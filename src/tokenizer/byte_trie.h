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
  // A repeated key's last value wins. value must not be negative. UserError when the keys are too many.
  void insert(std::string_view key, int32_t value);

  // One byte further: the node, kNone if no key goes on so, and the value of the key that ends there, or -1.
  struct Step {
    uint32_t node = kNone;
    int32_t value = -1;
  };
  Step step(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return roots_[byte];
    if ((node & kHasMore) == 0) return {};
    const uint32_t key = node << 8 | byte;
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return {slots_[slot].node, values_[slots_[slot].node & kNumber]};
      if (slots_[slot].key == kFree) return {};
    }
  }

  struct Match {
    int32_t value = -1;
    size_t length = 0;
  };
  // The longest key that is a prefix of `text`; value -1 if there is none.
  Match longest_prefix(std::string_view text) const;
  bool is_empty() const { return values_.size() == 1; }

 private:
  // A node is its number, and whether keys go on from it; no edge is looked for where none is. An edge's key is the
  // number and the byte.
  static constexpr uint32_t kHasMore = 1u << 30, kNumber = (1u << 24) - 1;
  static constexpr uint32_t kFree = 0;  // would be an edge of the root
  struct Slot {
    uint32_t key = kFree, node = 0;
  };
  size_t slot_of(uint32_t key) const { return (key * 0x9E3779B97F4A7C15 >> 32) & mask_; }
  Slot& locate(uint32_t key);
  void grow();

  std::vector<Step> roots_;         // from the root, by byte
  HugePageVector<Slot> slots_;      // all other edges, open addressing
  HugePageVector<int32_t> values_;  // by number, -1 for none; the root's is not used
  size_t mask_ = 0, num_edges_ = 0;
};

}  // namespace megalith
