// Caches the ids of pieces: natural text repeats its words, and encoders would spend most of their time merging
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
  // A number unique among this process's tokenizers.
  static uint32_t new_owner();

  // Appends the ids of `piece` as `compute(ids)` would, from the table if present.
  template <typename Compute>
  static void encode(uint32_t owner, std::string_view piece, std::vector<int32_t>& ids, const Compute& compute) {
    if (piece.size() >= kRoom) return compute(ids);
    Slot& slot = table()[checksum64(piece) & (kSlots - 1)];
    const int32_t* cached = slot.ids();
    if (slot.owner == owner && slot.num_bytes == piece.size() &&
        std::memcmp(slot.room.data(), piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), cached, cached + slot.num_ids);
      return;
    }
    const size_t before = ids.size();
    compute(ids);
    const size_t count = ids.size() - before;
    const auto num_bytes = static_cast<uint8_t>(piece.size());
    if (Slot::ids_offset(num_bytes) + count * sizeof(int32_t) > kRoom) return;
    slot.owner = owner;
    slot.num_bytes = num_bytes;
    slot.num_ids = static_cast<uint8_t>(count);
    std::memcpy(slot.room.data(), piece.data(), piece.size());
    std::memcpy(slot.room.data() + Slot::ids_offset(num_bytes), ids.data() + before, count * sizeof(int32_t));
  }

 private:
  // Bytes and ids share a slot's room: a short piece's lie in its first 64 bytes, and a long one's still fit.
  static constexpr size_t kSlots = 1 << 15, kRoom = 120;  // 4 MiB a thread
  struct alignas(64) Slot {
    uint32_t owner = 0;  // 0: none
    uint8_t num_bytes = 0, num_ids = 0;
    alignas(8) std::array<char, kRoom> room;
    static size_t ids_offset(uint8_t num_bytes) { return (size_t{num_bytes} + 3) / 4 * 4; }
    const int32_t* ids() const { return reinterpret_cast<const int32_t*>(room.data() + ids_offset(num_bytes)); }
  };
  static Slot* table();
};

}  // namespace megalith
