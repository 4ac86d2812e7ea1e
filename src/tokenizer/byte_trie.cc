// A set of byte strings; see byte_trie.h.
#include "tokenizer/byte_trie.h"

#include <fmt/format.h>

#include "core/error.h"

namespace megalith {

ByteTrie::ByteTrie() : roots_(256), slots_(64), values_(1, -1), mask_(63) {}

ByteTrie::Slot& ByteTrie::locate(uint32_t key) {
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  return slots_[slot];
}

void ByteTrie::grow() {
  HugePageVector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key != kFree) locate(slot.key) = slot;
  }
}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto byte = static_cast<uint8_t>(key[i]);
    if (2 * (num_edges_ + 1) > slots_.size()) grow();
    Slot* slot = node == kRoot ? nullptr : &locate(node << 8 | byte);
    uint32_t& next = slot == nullptr ? roots_[byte].node : slot->node;
    if (slot == nullptr ? next == kNone : slot->key == kFree) {
      if (values_.size() > kNumber) {
        throw UserError(fmt::format("a vocabulary's tokens have more than {} beginnings", kNumber),
                        "no tokenizer has so many: fetch its files again");
      }
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (slot != nullptr) {
        slot->key = node << 8 | byte;
        ++num_edges_;
      }
    }
    if (i + 1 < key.size()) {
      next |= kHasMore;
    } else {
      values_[next & kNumber] = value;
      if (slot == nullptr) roots_[byte].value = value;
    }
    node = next;
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
