// A set of byte strings; see byte_trie.h.
#include "tokenizer/byte_trie.h"

#include <utility>

namespace megalith {

ByteTrie::ByteTrie() : roots_(256, kNone), slots_(64), mask_(63), values_(1, -1) {}

void ByteTrie::put(uint64_t key, uint32_t child) {
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree) slot = (slot + 1) & mask_;
  slots_[slot] = {key, child};
}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = step(node, byte);
    if (next == kNone) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (node == kRoot) {
        roots_[byte] = next;
      } else {
        if (2 * ++num_edges_ > slots_.size()) {
          std::vector<Slot> old(slots_.size() * 2);
          old.swap(slots_);
          mask_ = slots_.size() - 1;
          for (const Slot& slot : old) {
            if (slot.key != kFree) put(slot.key, slot.child);
          }
        }
        put(uint64_t{node} << 8 | byte, next);
      }
    }
    node = next;
  }
  values_[node] = value;
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match best;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = step(node, static_cast<uint8_t>(text[i]));
    if (node == kNone) break;
    if (values_[node] >= 0) best = {values_[node], i + 1};
  }
  return best;
}

}  // namespace megalith
