// tokenizer.json's model Unigram; the search is in unigram.h.
#include "tokenizer/unigram.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/token_model.h"

namespace megalith {
namespace {

// Penalty of an unknown character, below the worst token.
constexpr double kUnknownPenalty = 10.0;

class Unigram final : public TokenModel {
 public:
  Unigram(const TokenList& tokens, std::vector<double> scores, int32_t unk_id, bool byte_fallback)
      : vocabulary_({tokens.rbegin(), tokens.rend()}),  // of equal tokens the last one counts
        scores_(std::move(scores)),
        unk_id_(unk_id),
        owner_(PieceCache::new_owner()) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& [token, id] : tokens) {
      if (!token.empty()) trie_.insert(token, id);
      lowest = std::min(lowest, scores_[static_cast<size_t>(id)]);
    }
    unknown_score_ = lowest - kUnknownPenalty;
    for (size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
    byte_fallback_ = byte_fallback;
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    PieceCache::encode(owner_, piece, ids, [&](std::vector<int32_t>& out) { search(piece, out); });
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  int32_t find(std::string_view text) const {
    const ByteTrie::Match match = trie_.longest_prefix(text);
    return match.length == text.size() ? match.value : -1;
  }

  void search(std::string_view piece, std::vector<int32_t>& ids) const {
    const auto path = unigram_path<double>(piece, trie_, unknown_score_,
                                           [this](int32_t id, size_t) { return scores_[static_cast<size_t>(id)]; });
    const auto is_unknown = [this](const UnigramStep& step) { return step.value < 0 || step.value == unk_id_; };
    for (size_t i = 0; i < path.size(); ++i) {
      if (!is_unknown(path[i])) {
        ids.push_back(path[i].value);
        continue;
      }
      // Neighbouring unknown characters are one token, which may happen to be in the vocabulary.
      const size_t begin = path[i].begin;
      while (i + 1 < path.size() && is_unknown(path[i + 1])) ++i;
      put_unknown(piece.substr(begin, path[i].end - begin), ids);
    }
  }

  void put_unknown(std::string_view text, std::vector<int32_t>& ids) const {
    if (const int32_t id = find(text); id >= 0) {
      ids.push_back(id);
      return;
    }
    bool has_bytes = byte_fallback_;
    for (const char c : text) has_bytes = has_bytes && byte_ids_[static_cast<uint8_t>(c)] >= 0;
    if (has_bytes) {
      for (const char c : text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      return;
    }
    if (unk_id_ < 0) {
      throw UserError(fmt::format("the tokenizer has no token for \"{}\" and no unknown token", text),
                      "give its Unigram model an unk_id");
    }
    ids.push_back(unk_id_);
  }

  Vocabulary vocabulary_;
  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  int32_t unk_id_;
  uint32_t owner_;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const Json& json, std::string_view where) {
  const Json& vocab = get_member(json, "vocab", where);
  if (!vocab.is_array()) throw UserError(fmt::format("{}: \"vocab\" of a Unigram model is not a list", where));
  TokenList tokens;
  std::vector<double> scores;
  for (size_t i = 0; i < vocab.size(); ++i) {
    const Json& entry = vocab[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      throw UserError(fmt::format("{}: vocab[{}] is not a token and its score", where, i));
    }
    tokens.emplace_back(*try_text(entry[0]), narrow<int32_t>(i));
    scores.push_back(json_as<double>(entry[1], where));
    if (!std::isfinite(scores.back())) throw UserError(fmt::format("{}: vocab[{}] has no finite score", where, i));
  }
  const int64_t unk_id = json_get_or<int64_t>(json, "unk_id", -1, where);
  if (unk_id < -1 || unk_id >= static_cast<int64_t>(tokens.size())) {
    throw UserError(fmt::format("{}: unk_id {} is not in the vocabulary of {}", where, unk_id, tokens.size()));
  }
  if (tokens.empty()) throw UserError(fmt::format("{}: \"vocab\" is empty", where));
  return std::make_unique<Unigram>(tokens, std::move(scores), static_cast<int32_t>(unk_id),
                                   json_get_or(json, "byte_fallback", false, where));
}

}  // namespace megalith
