// The cache of pieces; see piece_cache.h.
#include "tokenizer/piece_cache.h"

#include <atomic>

#include "tokenizer/huge_pages.h"

namespace megalith {

uint32_t PieceCache::new_owner() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

PieceCache::Slot* PieceCache::table() {
  thread_local HugePageVector<Slot> slots(kSlots);
  return slots.data();
}

}  // namespace megalith
