// Caches the ids of short pieces: natural text repeats its words, and encoders would spend most of their time merging
// them again. Each thread has its own table of fixed size, so a tokenizer stays const and needs no lock; all tokenizers
// share it, told apart by owner number.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/checksum.h"

namespace megalith {

class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxIds = 8;

  // A number unique among this process's tokenizers.
  static uint32_t new_owner();

  // Appends the ids of `piece` as `compute(ids)` would, from the table if present.
  template <typename Compute>
  static void encode(uint32_t owner, std::string_view piece, std::vector<int32_t>& ids, const Compute& compute) {
    if (piece.size() > kMaxBytes) return compute(ids);
    Slot& slot = table()[checksum64(piece) & (kSlots - 1)];
    if (slot.owner == owner && slot.num_bytes == piece.size() &&
        std::memcmp(slot.bytes.data(), piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.num_ids);
      return;
    }
    const size_t before = ids.size();
    compute(ids);
    const size_t count = ids.size() - before;
    if (count > kMaxIds) return;
    slot.owner = owner;
    slot.num_bytes = static_cast<uint8_t>(piece.size());
    slot.num_ids = static_cast<uint8_t>(count);
    std::memcpy(slot.bytes.data(), piece.data(), piece.size());
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), slot.ids.begin());
  }

 private:
  static constexpr size_t kSlots = 1 << 15;  // 2 MiB a thread
  struct Slot {
    uint32_t owner = 0;  // 0: none
    uint8_t num_bytes = 0, num_ids = 0;
    std::array<char, kMaxBytes> bytes;
    std::array<int32_t, kMaxIds> ids;
  };
  static Slot* table();
};

}  // namespace megalith
