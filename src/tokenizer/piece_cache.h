// Caches the ids of pieces: natural text repeats its words, and encoders would spend most of their time merging
// them again. Each thread has its own cache of bounded size, so a tokenizer stays const and needs no lock; all
// tokenizers share it, told apart by owner number.
//
// Pieces of up to 16 bytes are found by their bytes as two words, without a branch but the one that they are there;
// their ids follow in the same half of a cache line. Longer pieces, and those of many ids, are in an arena.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/checksum.h"
#include "tokenizer/huge_pages.h"

namespace megalith {

class PieceCache {
 public:
  // A number unique among this process's tokenizers.
  static uint32_t new_owner();
  static PieceCache& of_thread();

  // Appends the ids of `piece` as `compute(ids)` would, from the cache if present.
  template <typename Compute>
  static void encode(uint32_t owner, std::string_view piece, std::vector<int32_t>& ids, const Compute& compute) {
    PieceCache& cache = of_thread();
    if (piece.size() > kShort) {
      return cache.encode_long(owner, piece, cache.bucket_of(owner, piece), ids, compute);
    }
    const Key key = key_of(piece);
    cache.encode_short(owner, key, piece.size(), cache.pair_of(hash_of(key, owner)), ids, compute);
  }

  // The same for the pieces text[begin, ends[0]), text[ends[0], ends[1]) …: compute(piece, ids).
  template <typename Compute>
  static void encode_all(uint32_t owner, std::string_view text, size_t begin, std::span<const size_t> ends,
                         std::vector<int32_t>& ids, const Compute& compute) {
    PieceCache& cache = of_thread();
    for (size_t done = 0; done < ends.size(); done += kGroup) {
      const auto group = ends.subspan(done, std::min(kGroup, ends.size() - done));
      cache.encode_group(owner, text, begin, group, ids, compute);
      begin = group.back();
    }
  }

 private:
  static constexpr size_t kShort = 16, kFewIds = 3, kGroup = 64;
  static constexpr size_t kPairs = 1 << 16, kBuckets = 1 << 15;  // 4 and 2 MiB
  static constexpr size_t kArena = 4 << 20;                        // in int32_t; then the cache begins anew

  struct Key {
    uint64_t low = 0, high = 0;  // the piece's bytes, zero after its end
  };
  struct ShortSlot {
    Key key;
    uint32_t tag = 0;  // owner << 8 | bytes << 3 | number of ids; kFewIds + 1: they are in the arena. 0: free
    std::array<int32_t, kFewIds> ids{};  // in the arena: their place, and their number
  };
  struct alignas(64) Pair {
    std::array<ShortSlot, 2> slots;
  };
  struct LongSlot {
    uint32_t owner = 0, place = 0, num_bytes = 0, num_ids = 0;  // in the arena: the bytes, then the ids
  };
  struct alignas(64) Bucket {
    std::array<LongSlot, 4> slots;
  };

  static Key key_of(std::string_view piece);
  // text[at, at + size), where 16 bytes can be read.
  static Key key_in(const char* at, size_t size) {
    static constexpr auto kMasks = [] {
      std::array<Key, kShort + 1> masks;
      for (size_t i = 1; i <= kShort; ++i) {
        masks[i].low = i < 8 ? (uint64_t{1} << 8 * i) - 1 : ~uint64_t{0};
        masks[i].high = i <= 8 ? 0 : i < 16 ? (uint64_t{1} << 8 * (i - 8)) - 1 : ~uint64_t{0};
      }
      return masks;
    }();
    Key key;
    std::memcpy(&key, at, sizeof key);
    return {key.low & kMasks[size].low, key.high & kMasks[size].high};
  }
  static uint64_t hash_of(const Key& key, uint32_t owner) {
    return (key.low + std::rotl(key.high * 0x9FB21C651E98DF25, 29) + owner) * 0x9E3779B97F4A7C15;
  }
  Pair& pair_of(uint64_t hash) { return pairs_[hash >> (64 - std::bit_width(kPairs - 1))]; }
  Bucket& bucket_of(uint32_t owner, std::string_view piece) {
    return buckets_[(checksum64(piece) + owner) & (kBuckets - 1)];
  }

  template <typename Compute>
  void encode_group(uint32_t owner, std::string_view text, size_t begin, std::span<const size_t> ends,
                    std::vector<int32_t>& ids, const Compute& compute) {
    std::array<Key, kGroup> keys;
    std::array<Pair*, kGroup> pairs;
    std::array<Bucket*, kGroup> buckets;
    size_t num_long = 0;
    for (size_t i = 0, at = begin; i < ends.size(); at = ends[i++]) {
      const size_t size = ends[i] - at;
      if (size > kShort) {
        buckets[num_long] = &bucket_of(owner, text.substr(at, size));
        __builtin_prefetch(buckets[num_long++]);
        continue;
      }
      keys[i] = at + kShort <= text.size() ? key_in(text.data() + at, size) : key_of(text.substr(at, size));
      pairs[i] = &pair_of(hash_of(keys[i], owner));
      __builtin_prefetch(pairs[i]);
    }
    for (size_t i = 0; i < num_long; ++i) {
      for (const LongSlot& slot : buckets[i]->slots) __builtin_prefetch(arena_.data() + slot.place);
    }
    std::array<int32_t, (kGroup + 1) * kFewIds> few;
    size_t count = 0;
    num_long = 0;
    for (size_t i = 0; i < ends.size(); begin = ends[i++]) {
      const size_t size = ends[i] - begin;
      if (size <= kShort) {
        const ShortSlot* slot = find(*pairs[i], keys[i], owner, size);
        if (slot != nullptr && (slot->tag & 7) <= kFewIds) {
          std::memcpy(few.data() + count, slot->ids.data(), sizeof slot->ids);
          count += slot->tag & 7;
          continue;
        }
      }
      ids.insert(ids.end(), few.data(), few.data() + count);
      count = 0;
      const std::string_view piece = text.substr(begin, size);
      const auto compute_piece = [&](std::vector<int32_t>& out) { compute(piece, out); };
      if (size <= kShort) {
        encode_short(owner, keys[i], size, *pairs[i], ids, compute_piece);
      } else {
        encode_long(owner, piece, *buckets[num_long++], ids, compute_piece);
      }
    }
    ids.insert(ids.end(), few.data(), few.data() + count);
  }

  static const ShortSlot* find(const Pair& pair, const Key& key, uint32_t owner, size_t size) {
    const auto differs = [&](const ShortSlot& slot) {
      return (slot.key.low ^ key.low) | (slot.key.high ^ key.high) | ((slot.tag >> 3) ^ (owner << 5 | size));
    };
    const ShortSlot& slot = pair.slots[differs(pair.slots[0]) != 0];
    return differs(slot) == 0 ? &slot : nullptr;
  }

  template <typename Compute>
  void encode_short(uint32_t owner, const Key& key, size_t size, Pair& pair, std::vector<int32_t>& ids,
                    const Compute& compute) {
    if (const ShortSlot* slot = find(pair, key, owner, size)) {
      const bool is_few = (slot->tag & 7) <= kFewIds;
      const int32_t* cached = is_few ? slot->ids.data() : arena_.data() + slot->ids[0];
      ids.insert(ids.end(), cached, cached + (is_few ? slot->tag & 7 : static_cast<uint32_t>(slot->ids[1])));
      return;
    }
    const size_t before = ids.size();
    compute(ids);
    keep_short(owner, key, size, pair, std::span(ids).subspan(before));
  }
  void keep_short(uint32_t owner, const Key& key, size_t size, Pair& pair, std::span<const int32_t> ids);

  template <typename Compute>
  void encode_long(uint32_t owner, std::string_view piece, Bucket& bucket, std::vector<int32_t>& ids,
                   const Compute& compute) {
    if (const LongSlot* slot = find_long(owner, piece, bucket)) {
      const int32_t* cached = arena_.data() + slot->place + words_of(piece.size());
      ids.insert(ids.end(), cached, cached + slot->num_ids);
      return;
    }
    const size_t before = ids.size();
    compute(ids);
    keep_long(owner, piece, bucket, std::span(ids).subspan(before));
  }
  const LongSlot* find_long(uint32_t owner, std::string_view piece, const Bucket& bucket) const;
  void keep_long(uint32_t owner, std::string_view piece, Bucket& bucket, std::span<const int32_t> ids);

  static size_t words_of(size_t num_bytes) { return (num_bytes + sizeof(int32_t) - 1) / sizeof(int32_t); }
  // The slot to use for a new piece. If all are taken it is any: in a text with more words than slots none would be
  // found if the oldest always left.
  template <typename Slots, typename IsFree>
  auto& choose(Slots& slots, const IsFree& is_free) {
    for (auto& slot : slots) {
      if (is_free(slot)) return slot;
    }
    random_ = random_ * 0x9E3779B97F4A7C15 + 1;
    return slots[random_ >> 32 & (slots.size() - 1)];
  }
  // Room for so many in the arena; null for more than a quarter of it. May empty the cache.
  int32_t* make_room(size_t count);

  HugePageVector<Pair> pairs_ = HugePageVector<Pair>(kPairs);
  HugePageVector<Bucket> buckets_ = HugePageVector<Bucket>(kBuckets);
  std::vector<int32_t> arena_;
  uint64_t random_ = 1;
};

}  // namespace megalith
