// Byte-pair encoding over bytes. Pieces come from the cache; a new one is merged (merge_table.h), a long one cut by
// backtracking (backtracking_bpe.h) if every byte has a token.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/backtracking_bpe.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/token_model.h"

namespace megalith {
namespace {

class ByteLevelBpe final : public TokenModel {
 public:
  struct Options {
    bool ignore_merges = false;
    int32_t unk_id = -1;
    bool fuse_unk = false;
  };

  ByteLevelBpe(Vocabulary vocabulary, MergeTable merges, Options options)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        options_(options),
        owner_(PieceCache::new_owner()) {
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      byte_ids_[static_cast<size_t>(byte)] = vocabulary_.find({&c, 1});
    }
    has_all_bytes_ = *std::min_element(byte_ids_.begin(), byte_ids_.end()) >= 0;
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    PieceCache::encode(owner_, piece, ids, [&](std::vector<int32_t>& out) { compute(piece, out); });
  }
  void encode_all(std::string_view text, size_t begin, std::span<const size_t> ends,
                  std::vector<int32_t>& ids) const override {
    PieceCache::encode_all(owner_, text, begin, ends, ids,
                           [&](std::string_view piece, std::vector<int32_t>& out) { compute(piece, out); });
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  static constexpr size_t kFewBytes = 12;  // up to here merging is as fast

  void compute(std::string_view piece, std::vector<int32_t>& ids) const {
    const int32_t whole = options_.ignore_merges ? vocabulary_.find(piece) : -1;
    if (whole >= 0) {
      ids.push_back(whole);
    } else if (has_all_bytes_ && piece.size() > kFewBytes && pays_for_tables(piece.size())) {
      std::call_once(is_backtracking_made_, [&] {
        backtracking_ = std::make_unique<BacktrackingBpe>(merges_, vocabulary_, byte_ids_);
      });
      backtracking_->encode(piece, ids);
    } else {
      merge(piece, ids);
    }
  }

  // Making the tables takes as long as merging a few megabytes: short inputs do without.
  bool pays_for_tables(size_t num_bytes) const {
    constexpr size_t kFewLongBytes = 128 << 10;
    if (long_bytes_.load(std::memory_order_relaxed) > kFewLongBytes) return true;
    return long_bytes_.fetch_add(num_bytes, std::memory_order_relaxed) + num_bytes > kFewLongBytes;
  }

  // Starts from the ids of single bytes; a byte without a token becomes the unknown token, or is dropped if there is
  // none.
  void merge(std::string_view piece, std::vector<int32_t>& ids) const {
    const size_t before = ids.size();
    bool last_was_unknown = false;
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        ids.push_back(id);
      } else if (options_.unk_id >= 0 && !(options_.fuse_unk && last_was_unknown)) {
        ids.push_back(options_.unk_id);
      }
      last_was_unknown = id < 0;
    }
    ids.resize(before + merges_.merge(ids.data() + before, ids.size() - before));
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  Options options_;
  uint32_t owner_;
  std::array<int32_t, 256> byte_ids_;
  bool has_all_bytes_;
  mutable std::atomic<size_t> long_bytes_{0};    // of long pieces so far
  mutable std::once_flag is_backtracking_made_;  // once they are many
  mutable std::unique_ptr<BacktrackingBpe> backtracking_;
};

}  // namespace

bool can_be_byte_level(const Json& json, std::string_view where) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_get_or<std::string>(json, key, "", where).empty()) return false;
  }
  return !json_get_or(json, "byte_fallback", false, where);
}

std::unique_ptr<TokenModel> make_byte_level_bpe(const Json& json, std::string_view where) {
  TokenList tokens = read_vocab(json, where), outside;
  const Vocabulary spelling(tokens);
  MergeTable merges = read_merges(json, spelling, 0, where);

  // A token outside the alphabet never matches a text's bytes; it keeps its spelling.
  TokenList bytes;
  bytes.reserve(tokens.size());
  for (auto& [token, id] : tokens) {
    if (auto spelt = spelt_bytes(token)) {
      bytes.emplace_back(std::move(*spelt), id);
    } else {
      outside.emplace_back(std::move(token), id);
    }
  }
  if (bytes.empty()) throw UserError(fmt::format("{}: \"vocab\" holds no byte-level token", where));

  ByteLevelBpe::Options options{.ignore_merges = json_get_or(json, "ignore_merges", false, where),
                                .fuse_unk = json_get_or(json, "fuse_unk", false, where)};
  if (const auto unk = json_find<std::string>(json, "unk_token", where)) options.unk_id = spelling.find(*unk);
  return std::make_unique<ByteLevelBpe>(Vocabulary(bytes, outside), std::move(merges), options);
}

std::unique_ptr<TokenModel> make_rank_bpe(const std::vector<std::string>& tokens, int32_t first_id,
                                          std::string_view where) {
  TokenList list;
  list.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) list.emplace_back(tokens[i], first_id + narrow<int32_t>(i));
  Vocabulary vocabulary(list);
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (vocabulary.find({&c, 1}) < 0) {
      throw UserError(fmt::format("{}: no token is the single byte {}", where, byte), "the file was cut or damaged");
    }
  }
  // Every split of a token into two tokens is a merge.
  struct Pair {
    int32_t left, right, id;
  };
  std::vector<Pair> pairs;
  pairs.reserve(3 * tokens.size());
  constexpr size_t kLongest = 4096;  // no tokenizer has longer ones; keeps a hostile one from quadratic cost
  for (const auto& [token, id] : list) {
    if (token.size() > kLongest) {
      throw UserError(
          fmt::format("{}: the token of id {} has {} bytes, more than {}", where, id, token.size(), kLongest));
    }
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = vocabulary.find(std::string_view(token).substr(0, cut));
      if (left < 0) continue;
      const int32_t right = vocabulary.find(std::string_view(token).substr(cut));
      if (right >= 0) pairs.push_back({left, right, id});
    }
  }
  MergeTable merges(pairs.size());
  for (const Pair& pair : pairs) merges.insert(pair.left, pair.right, {static_cast<uint32_t>(pair.id), pair.id});
  return std::make_unique<ByteLevelBpe>(std::move(vocabulary), std::move(merges),
                                        ByteLevelBpe::Options{.ignore_merges = true});
}

}  // namespace megalith
