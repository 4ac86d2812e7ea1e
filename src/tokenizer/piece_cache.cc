// The cache of pieces; see piece_cache.h.
#include "tokenizer/piece_cache.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"

namespace megalith {
static_assert(std::endian::native == std::endian::little);

uint32_t PieceCache::new_owner() {
  static std::atomic<uint32_t> last{0};
  const uint32_t owner = ++last;
  MEGALITH_CHECK(owner < 1u << 24, "{} tokenizers", owner);  // a slot's tag has room for so many
  return owner;
}

PieceCache& PieceCache::of_thread() {
  thread_local PieceCache cache;
  return cache;
}

PieceCache::Key PieceCache::key_of(std::string_view piece) {
  Key key;
  std::memcpy(&key, piece.data(), piece.size());
  return key;
}

int32_t* PieceCache::make_room(size_t count) {
  if (count > kArena / 4) return nullptr;
  if (arena_.size() + count > kArena) {
    arena_.clear();
    std::fill(pairs_.begin(), pairs_.end(), Pair());
    std::fill(buckets_.begin(), buckets_.end(), Bucket());
  }
  arena_.resize(arena_.size() + count);
  return arena_.data() + arena_.size() - count;
}

void PieceCache::keep_short(uint32_t owner, const Key& key, size_t size, Pair& pair, std::span<const int32_t> ids) {
  ShortSlot slot{.key = key};
  const bool is_few = ids.size() <= kFewIds;
  if (is_few) {
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
  } else {
    int32_t* room = make_room(ids.size());
    if (room == nullptr) return;
    std::copy(ids.begin(), ids.end(), room);
    slot.ids = {static_cast<int32_t>(room - arena_.data()), static_cast<int32_t>(ids.size()), 0};
  }
  slot.tag = owner << 8 | static_cast<uint32_t>(size << 3 | (is_few ? ids.size() : kFewIds + 1));
  choose(pair.slots, [](const ShortSlot& other) { return other.tag == 0; }) = slot;
}

const PieceCache::LongSlot* PieceCache::find_long(uint32_t owner, std::string_view piece, const Bucket& bucket) const {
  for (const LongSlot& slot : bucket.slots) {
    if (slot.owner == owner && slot.num_bytes == piece.size() &&
        std::memcmp(arena_.data() + slot.place, piece.data(), piece.size()) == 0) {
      return &slot;
    }
  }
  return nullptr;
}

void PieceCache::keep_long(uint32_t owner, std::string_view piece, Bucket& bucket, std::span<const int32_t> ids) {
  const size_t num_words = words_of(piece.size());
  int32_t* room = make_room(num_words + ids.size());
  if (room == nullptr) return;
  std::memcpy(room, piece.data(), piece.size());
  std::copy(ids.begin(), ids.end(), room + num_words);
  choose(bucket.slots, [](const LongSlot& slot) { return slot.owner == 0; }) = {
      owner, static_cast<uint32_t>(room - arena_.data()), static_cast<uint32_t>(piece.size()),
      static_cast<uint32_t>(ids.size())};
}

}  // namespace megalith
