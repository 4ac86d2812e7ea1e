#include "tokenizer/merge_table.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <queue>
#include <vector>

#include "core/error.h"

namespace megalith {
namespace {
constexpr size_t kFewSymbols = 64;
}

size_t MergeTable::merge(int32_t* symbols, size_t size, size_t least) const {
  return size <= kFewSymbols ? merge_by_scanning(symbols, size, least) : merge_by_queue(symbols, size, least);
}

// O(n^2) over a few dozen symbols on the stack: faster than any queue.
size_t MergeTable::merge_by_scanning(int32_t* symbols, size_t size, size_t least) const {
  MEGALITH_CHECK(size <= kFewSymbols, "{} symbols", size);
  std::array<Merge, kFewSymbols> merges;  // merges[i]: of symbols i and i + 1
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (size > least) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == UINT32_MAX) break;
    symbols[best] = merges[best].id;
    for (size_t i = best + 1; i + 1 < size; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --size;
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < size) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  return size;
}

// O(n log n): symbols in a linked list, candidate merges in a queue; stale candidates are dropped when popped.
size_t MergeTable::merge_by_queue(int32_t* ids, size_t size, size_t least) const {
  if (size == 0) return 0;
  constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    int32_t id;  // -1 once merged away
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t rank, position;
    int32_t left, right;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  constexpr size_t kMost = size_t{1} << 26;
  if (size > kMost) {
    throw UserError(fmt::format("{} characters follow one another without a place to cut, and {} at most are merged: "
                                "each takes 40 bytes of memory",
                                size, kMost),
                    "divide the text");
  }
  const auto count = narrow<uint32_t>(size);
  std::vector<Symbol> symbols(count);
  for (uint32_t i = 0; i < count; ++i) symbols[i] = {ids[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};

  std::vector<Candidate> storage;
  storage.reserve(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(storage));
  const auto offer = [&](uint32_t left) {
    const Symbol& symbol = symbols[left];
    if (symbol.next == kEnd) return;
    const Merge merge = find(symbol.id, symbols[symbol.next].id);
    if (merge.rank != UINT32_MAX) queue.push({merge.rank, left, symbol.id, symbols[symbol.next].id});
  };
  for (uint32_t i = 0; i < count; ++i) offer(i);
  for (size_t num_left = size; num_left > least && !queue.empty();) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[candidate.position];
    if (left.id != candidate.left || left.next == kEnd || symbols[left.next].id != candidate.right) continue;
    Symbol& right = symbols[left.next];
    left.id = find(candidate.left, candidate.right).id;
    left.next = right.next;
    right.id = -1;
    --num_left;
    if (left.next != kEnd) symbols[left.next].previous = candidate.position;
    if (left.previous != kEnd) offer(left.previous);
    offer(candidate.position);
  }
  size_t left_over = 0;
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next) ids[left_over++] = symbols[i].id;
  return left_over;
}

}  // namespace megalith
