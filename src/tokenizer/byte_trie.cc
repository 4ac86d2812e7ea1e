// A set of byte strings; see byte_trie.h.
#include "tokenizer/byte_trie.h"

#include <utility>

namespace megalith {

ByteTrie::ByteTrie() : roots_(256), slots_(64), mask_(63) {}

void ByteTrie::put(uint64_t key, Step step) {
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, step};
}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto byte = static_cast<uint8_t>(key[i]);
    Step next = step(node, byte);
    const bool is_new = next.node == kNone, is_last = i + 1 == key.size();
    if (is_new) next.node = num_nodes_++;
    if (is_last) next.value = value;
    if (node == kRoot) {
      roots_[byte] = next;
    } else if (is_new || is_last) {
      if (is_new && 2 * ++num_edges_ > slots_.size()) {
        HugePageVector<Slot> old(slots_.size() * 2);
        old.swap(slots_);
        mask_ = slots_.size() - 1;
        for (const Slot& slot : old) {
          if (slot.key != kFree) put(slot.key, slot.step);
        }
      }
      put(uint64_t{node} << 8 | byte, next);
    }
    node = next.node;
  }
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match best;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    const Step next = step(node, static_cast<uint8_t>(text[i]));
    if (next.node == kNone) break;
    if (next.value >= 0) best = {next.value, i + 1};
    node = next.node;
  }
  return best;
}

}  // namespace megalith
