// Byte-pair encoding over bytes: start from single bytes and merge the neighbouring pair of lowest rank, leftmost
// first, until no pair has a rank. Source: Sennrich et al. 2016; rules as in Hugging Face's `tokenizers`.
//
// Most pieces of real text are tokens themselves. Such a piece is answered by one look-up: whether merging really leads
// to that token is worked out at its first use and remembered. Short pieces are merged by scanning, long ones with a
// queue, so that a document without blanks stays O(n log n).
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <nlohmann/json.hpp>
#include <queue>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/token_model.h"

namespace megalith {
namespace {

struct Merge {
  uint32_t rank = UINT32_MAX;  // UINT32_MAX: the pair does not merge
  int32_t id = -1;
};

// (left id, right id) → merge, by open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t count) : mask_(std::bit_ceil(2 * count + 2) - 1), slots_(mask_ + 1) {}

  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[locate(key_of(left, right))];
    slot = {key_of(left, right), merge};  // of equal pairs the last one counts
  }
  Merge find(int32_t left, int32_t right) const { return slots_[locate(key_of(left, right))].merge; }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t locate(uint64_t key) const {
    size_t slot = (key * 0x9E3779B97F4A7C15 >> 32) & mask_;
    while (slots_[slot].key != key && slots_[slot].key != UINT64_MAX) slot = (slot + 1) & mask_;
    return slot;
  }

  size_t mask_;
  std::vector<Slot> slots_;
};

class ByteLevelBpe final : public TokenModel {
 public:
  ByteLevelBpe(Vocabulary vocabulary, MergeTable merges, bool ignore_merges, int32_t unk_id, bool fuse_unk)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        ignore_merges_(ignore_merges),
        unk_id_(unk_id),
        fuse_unk_(fuse_unk),
        reach_(static_cast<size_t>(vocabulary_.end_id())) {
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      byte_ids_[static_cast<size_t>(byte)] = vocabulary_.find({&c, 1});
    }
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    const int32_t whole = vocabulary_.find(piece);
    if (whole >= 0 && (ignore_merges_ || is_reached(whole, piece))) {
      ids.push_back(whole);
    } else {
      merge(piece, ids);
    }
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  enum Reach : uint8_t { kUnknown, kReached, kNotReached };

  // Whether merging the token's own bytes gives the token. Every thread that asks finds the same answer, so the order
  // of the writes does not matter.
  bool is_reached(int32_t id, std::string_view bytes) const {
    std::atomic<uint8_t>& known = reach_[static_cast<size_t>(id)];
    uint8_t reach = known.load(std::memory_order_relaxed);
    if (reach == kUnknown) {
      std::vector<int32_t> ids;
      merge(bytes, ids);
      reach = ids.size() == 1 && ids[0] == id ? kReached : kNotReached;
      known.store(reach, std::memory_order_relaxed);
    }
    return reach == kReached;
  }

  // The ids of single bytes; a byte without token becomes the unknown token, or is left out when there is none.
  template <typename Out>
  void start(std::string_view piece, Out&& put) const {
    bool last_was_unknown = false;
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        put(id);
      } else if (unk_id_ >= 0 && !(fuse_unk_ && last_was_unknown)) {
        put(unk_id_);
      }
      last_was_unknown = id < 0;
    }
  }

  void merge(std::string_view piece, std::vector<int32_t>& ids) const {
    constexpr size_t kShort = 64;
    if (piece.size() <= kShort) {
      merge_short<kShort>(piece, ids);
    } else {
      merge_long(piece, ids);
    }
  }

  // O(n^2) over a few dozen symbols on the stack: faster than any queue.
  template <size_t kMax>
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
    std::array<int32_t, kMax> symbols;
    std::array<Merge, kMax> merges;  // merges[i]: of symbols i and i + 1
    size_t size = 0;
    start(piece, [&](int32_t id) { symbols[size++] = id; });
    for (size_t i = 0; i + 1 < size; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
    while (size > 1) {
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
      if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
      if (best + 1 < size) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(size));
  }

  // O(n log n): symbols in a linked list, candidate merges in a queue; outdated candidates are dropped when they come
  // up.
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
    struct Symbol {
      int32_t id;
      int64_t previous, next;  // -1 at the ends; id -1 once merged away
    };
    struct Candidate {
      uint32_t rank;
      int64_t position;
      int32_t left, right;
      bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : position > other.position;
      }
    };
    std::vector<Symbol> symbols;
    symbols.reserve(piece.size());
    start(piece, [&](int32_t id) {
      const auto i = static_cast<int64_t>(symbols.size());
      symbols.push_back({id, i - 1, i + 1});
    });
    if (symbols.empty()) return;
    symbols.back().next = -1;

    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    const auto offer = [&](int64_t left) {
      const Symbol& symbol = at(left);
      if (symbol.next < 0) return;
      const Merge merge = merges_.find(symbol.id, at(symbol.next).id);
      if (merge.rank != UINT32_MAX) queue.push({merge.rank, left, symbol.id, at(symbol.next).id});
    };
    for (int64_t i = 0; i < static_cast<int64_t>(symbols.size()); ++i) offer(i);
    while (!queue.empty()) {
      const Candidate candidate = queue.top();
      queue.pop();
      Symbol& left = at(candidate.position);
      if (left.id != candidate.left || left.next < 0 || at(left.next).id != candidate.right) continue;
      Symbol& right = at(left.next);
      left.id = merges_.find(candidate.left, candidate.right).id;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) at(left.next).previous = candidate.position;
      if (left.previous >= 0) offer(left.previous);
      offer(candidate.position);
    }
    for (int64_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  bool ignore_merges_;
  int32_t unk_id_;
  bool fuse_unk_;
  std::array<int32_t, 256> byte_ids_;
  mutable std::vector<std::atomic<uint8_t>> reach_;
};

void refuse(const Json& json, const char* key, std::string_view where) {
  const Json* value = find_member(json, key, where);
  const bool is_off = value == nullptr || (value->is_boolean() && !value->get<bool>()) ||
                      (value->is_string() && value->get<std::string>().empty()) ||
                      (value->is_number() && value->get<double>() == 0);
  if (!is_off) throw UserError(fmt::format("{}: BPE with {} = {} is not supported", where, key, dump_json(*value)));
}

std::string to_bytes(const std::string& token) {
  // A token outside the alphabet can never be found in a text's bytes; it keeps its spelling.
  return spelt_bytes(token).value_or(token);
}

}  // namespace

std::unique_ptr<TokenModel> make_byte_level_bpe(const Json& json, std::string_view where) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    refuse(json, key, where);
  }
  const Json& vocab = get_member(json, "vocab", where);
  if (!vocab.is_object()) throw UserError(fmt::format("{}: \"vocab\" is not an object", where));
  std::vector<std::pair<std::string, int32_t>> tokens, outside;
  std::vector<bool> is_used;
  constexpr int64_t kMaxId = 1 << 26;  // far above any vocabulary; keeps a hostile id from claiming memory
  for (const auto& [token, value] : vocab.items()) {
    const auto id = json_as<int64_t>(value, fmt::format("{}: vocab[\"{}\"]", where, token));
    if (id < 0 || id >= kMaxId) throw UserError(fmt::format("{}: vocab[\"{}\"] has the id {}", where, token, id));
    if (static_cast<size_t>(id) >= is_used.size()) is_used.resize(static_cast<size_t>(id) + 1);
    if (is_used[static_cast<size_t>(id)]) throw UserError(fmt::format("{}: two tokens have the id {}", where, id));
    is_used[static_cast<size_t>(id)] = true;
    const auto bytes = spelt_bytes(token);
    // Those in the alphabet first: they win when a token outside happens to have the same bytes.
    (bytes ? tokens : outside).emplace_back(bytes.value_or(token), static_cast<int32_t>(id));
  }
  if (tokens.empty()) throw UserError(fmt::format("{}: \"vocab\" holds no byte-level token", where));
  tokens.insert(tokens.end(), outside.begin(), outside.end());
  Vocabulary vocabulary(tokens);

  const Json& merges = get_member(json, "merges", where);
  if (!merges.is_array()) throw UserError(fmt::format("{}: \"merges\" is not a list", where));
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    std::string left, right;
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t blank = text.find(' ');
      if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos) {
        throw UserError(fmt::format("{}: merges[{}] is \"{}\", expected two tokens and a blank", where, rank, text));
      }
      left = text.substr(0, blank);
      right = text.substr(blank + 1);
    } else {
      const auto pair = json_as<std::vector<std::string>>(merge, fmt::format("{}: merges[{}]", where, rank));
      if (pair.size() != 2) throw UserError(fmt::format("{}: merges[{}] is not a pair", where, rank));
      left = pair[0];
      right = pair[1];
    }
    const std::string left_bytes = to_bytes(left), right_bytes = to_bytes(right);
    const int32_t left_id = vocabulary.find(left_bytes), right_id = vocabulary.find(right_bytes);
    const int32_t merged_id = vocabulary.find(left_bytes + right_bytes);
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      throw UserError(fmt::format("{}: merges[{}] (\"{}\" and \"{}\") uses or makes a token that is not in \"vocab\"",
                                  where, rank, left, right));
    }
    table.insert(left_id, right_id, {narrow<uint32_t>(rank), merged_id});
  }

  int32_t unk_id = -1;
  if (const auto unk = json_find<std::string>(json, "unk_token", where); unk && !unk->empty()) {
    unk_id = vocabulary.find(to_bytes(*unk));
  }
  return std::make_unique<ByteLevelBpe>(std::move(vocabulary), std::move(table),
                                        json_get_or(json, "ignore_merges", false, where), unk_id,
                                        json_get_or(json, "fuse_unk", false, where));
}

}  // namespace megalith
