#include "tokenizer/backtracking_bpe.h"

#include <algorithm>

#include "core/error.h"

namespace megalith {

BacktrackingBpe::BacktrackingBpe(const MergeTable& merges, const Vocabulary& vocabulary,
                                 const std::array<int32_t, 256>& byte_ids)
    : merges_(merges),
      vocabulary_(vocabulary),
      byte_ids_(byte_ids),
      tokens_(static_cast<size_t>(vocabulary.end_id())) {
  std::vector<std::pair<uint32_t, int32_t>> by_length;
  for (int32_t id = 0; id < static_cast<int32_t>(tokens_.size()); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    const auto length = narrow<uint32_t>(bytes.size());
    if (!bytes.empty() && vocabulary.find(bytes) == id) by_length.emplace_back(length, id);
    tokens_[static_cast<size_t>(id)].length = length;
  }
  std::sort(by_length.begin(), by_length.end());

  std::vector<int32_t> symbols;
  for (const auto& [length, id] : by_length) {
    Token& made = tokens_[static_cast<size_t>(id)];
    const std::string_view bytes = vocabulary.bytes(id);
    if (made.length == 1) {
      made.phase = 0;
      made.is_plain = true;
    } else {
      symbols.clear();
      for (const char c : bytes) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      symbols.resize(merges_.merge(symbols.data(), symbols.size(), 2));
      const Merge last = symbols.size() == 2 ? merges_.find(symbols[0], symbols[1]) : Merge{};
      if (last.id != id) continue;
      made.left = symbols[0];
      made.right = symbols[1];
      const uint32_t inside = std::max(token(made.left).phase, token(made.right).phase);
      made.phase = std::max(last.rank + 1, inside);
      made.is_plain = last.rank + 1 > inside;
      made.shorter = trie_.longest_prefix(bytes).value;  // only shorter ones are in the trie, and others as long
    }
    trie_.insert(bytes, id);
  }
}

std::vector<int32_t> BacktrackingBpe::bytes_of(int32_t id) const {
  std::vector<int32_t> symbols;
  for (const char c : vocabulary_.bytes(id)) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  return symbols;
}

// True if merging leaves these two tokens as they are.
bool BacktrackingBpe::stay_apart(int32_t first, int32_t second) const {
  struct End {
    uint32_t phase = kNever;
    bool is_plain = true;
  };
  End left_end, right_end;  // when the symbols left and right of the border merge with what is outside them
  for (int32_t left = first, right = second;;) {
    const Token &a = token(left), &b = token(right);
    if (const Merge merge = merges_.find(left, right); merge.id >= 0) {
      const uint32_t inside = std::max(a.phase, b.phase), phase = std::max(merge.rank + 1, inside);
      if (phase < std::min(left_end.phase, right_end.phase)) return false;
      if (phase == left_end.phase || phase == right_end.phase) {
        const bool is_plain = merge.rank + 1 > inside && (phase != left_end.phase || left_end.is_plain) &&
                              (phase != right_end.phase || right_end.is_plain);
        if (!is_plain) return stay_apart_when_merged(first, second);
        // Equal ranks merge from left to right.
        if (phase < left_end.phase) return false;
      }
    }
    if (a.phase == 0 && b.phase == 0) return true;
    if (a.phase == b.phase && !(a.is_plain && b.is_plain)) return stay_apart_when_merged(first, second);
    if (a.phase > b.phase) {
      left_end = {a.phase, a.is_plain};
      left = a.right;
    } else {
      right_end = {b.phase, b.is_plain};
      right = b.left;
    }
  }
}

bool BacktrackingBpe::stay_apart_when_merged(int32_t first, int32_t second) const {
  std::vector<int32_t> symbols = bytes_of(first);
  const std::vector<int32_t> others = bytes_of(second);
  symbols.insert(symbols.end(), others.begin(), others.end());
  symbols.resize(merges_.merge(symbols.data(), symbols.size()));
  return symbols == std::vector<int32_t>{first, second};
}

void BacktrackingBpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  std::vector<bool> is_dead;  // by offset: nothing can follow there. Made when first needed
  size_t at = 0;
  for (int32_t next = trie_.longest_prefix(piece).value; at < piece.size();) {
    const int32_t last = ids.size() > first ? ids.back() : -1;
    size_t end = 0;
    for (; next >= 0; next = token(next).shorter) {
      end = at + token(next).length;
      if ((is_dead.empty() || !is_dead[end]) && (last < 0 || stay_apart(last, next))) break;
    }
    if (next >= 0) {
      ids.push_back(next);
      at = end;
      next = trie_.longest_prefix(piece.substr(at)).value;
    } else {
      MEGALITH_CHECK(last >= 0, "no tokens for a piece of {} bytes", piece.size());
      if (is_dead.empty()) is_dead.resize(piece.size() + 1);
      is_dead[at] = true;
      ids.pop_back();
      at -= token(last).length;
      next = last;
    }
  }
}

}  // namespace megalith
