// See sentencepiece_encoder.h. Follows the library step by step, including its float comparisons of sums.
#include "tokenizer/sentencepiece_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <span>

#include "core/error.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/unigram.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cuts.h"

namespace megalith {
namespace {
using PieceType = SentencePiece::Type;

bool is_normal_piece(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined || type == PieceType::kUnused;
}

constexpr size_t kPairBits = size_t{1} << 20;
size_t pair_bit(uint32_t left, uint32_t right) {
  return ((uint64_t{left} << 21 | right) * 0x9E3779B97F4A7C15) >> (64 - std::countr_zero(kPairBits));
}
}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceRules& rules, bool whitespace_as_suffix,
                                                 const ByteTrie* user_symbols, std::string_view where)
    : map_(rules.charsmap.empty() ? Charsmap() : Charsmap(rules.charsmap, where)),
      add_dummy_prefix_(rules.add_dummy_prefix),
      remove_extra_whitespaces_(rules.remove_extra_whitespaces),
      escape_whitespaces_(rules.escape_whitespaces),
      whitespace_as_suffix_(whitespace_as_suffix),
      user_symbols_(user_symbols) {
  find_steady();
}

void SentencePieceNormalizer::find_steady() {
  const auto is_touched = [&](std::string_view text) {
    if (map_.touches(text)) return true;
    if (user_symbols_ == nullptr) return false;
    uint32_t node = ByteTrie::kRoot;
    for (const char c : text) {
      const ByteTrie::Step step = user_symbols_->step(node, static_cast<uint8_t>(c));
      if (step.node == ByteTrie::kNone || step.value >= 0) return step.value >= 0;
      node = step.node;
    }
    return true;
  };
  for (uint32_t c = 0; c < 128; ++c) {
    steady_ascii_[c] = c != ' ';
    for (uint32_t next = 0; next < 128 && steady_ascii_[c]; ++next) {
      const std::array<char, 2> both = {static_cast<char>(c), static_cast<char>(next)};
      steady_ascii_[c] = !is_touched({both.data(), 2});
    }
  }
  steady_.resize(0x10000);
  std::string character;
  for (uint32_t c = 0x80; c < 0x10000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    character.clear();
    append_utf8(c, character);
    steady_[c] = !is_touched(character);
  }
}

size_t SentencePieceNormalizer::steady_length(std::string_view text) const {
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x80) {
      const bool is_before_ascii = i + 1 == text.size() || static_cast<uint8_t>(text[i + 1]) < 0x80;
      if (!steady_ascii_[byte] || !is_before_ascii) break;
      ++i;
      continue;
    }
    size_t length = 0;
    const uint32_t c = valid_code_point(text, i, length);
    if (c >= steady_.size() || !steady_[c]) break;
    i += length;
  }
  return i;
}

std::string_view SentencePieceNormalizer::prefix(std::string_view text, size_t& length) const {
  if (user_symbols_ != nullptr && !user_symbols_->is_empty()) {
    if (const ByteTrie::Match symbol = user_symbols_->longest_prefix(text); symbol.length > 0) {
      length = symbol.length;
      return text.substr(0, length);
    }
  }
  const Charsmap::Match match = map_.longest_prefix(text);
  length = match.length > 0 ? match.length : utf8_length(text[0]);
  return match.length > 0 ? match.replacement : text.substr(0, length);
}

std::string SentencePieceNormalizer::normalize(std::string_view text) const {
  size_t length = 0;
  while (remove_extra_whitespaces_ && !text.empty() && prefix(text, length) == " ") text.remove_prefix(length);
  std::string out;
  if (text.empty()) return out;
  const std::string_view blank = escape_whitespaces_ ? kWordMark : " ";
  out.reserve(text.size() + text.size() / 2);
  if (add_dummy_prefix_ && !whitespace_as_suffix_) out += blank;
  bool after_blank = remove_extra_whitespaces_;
  while (!text.empty()) {
    if (const size_t steady = steady_length(text); steady > 0) {
      out += text.substr(0, steady);
      after_blank = false;
      text.remove_prefix(steady);
      continue;
    }
    std::string_view part = prefix(text, length);
    while (after_blank && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ') {
        out += blank;
      } else {
        out += c;
      }
    }
    if (!part.empty()) after_blank = remove_extra_whitespaces_ && part.ends_with(' ');
    text.remove_prefix(length);
  }
  while (remove_extra_whitespaces_ && out.ends_with(blank)) out.resize(out.size() - blank.size());
  if (add_dummy_prefix_ && whitespace_as_suffix_) out += blank;
  return out;
}

struct SentencePieceEncoder::Run {
  const SentencePieceEncoder& encoder;
  std::vector<int32_t>& ids;
  bool last_was_unknown = false;

  void put(int32_t id, std::string_view text) {
    const bool is_unknown = id == encoder.unk_id_;
    if (is_unknown && encoder.model_.byte_fallback) {
      for (const char c : text) ids.push_back(encoder.byte_ids_[static_cast<uint8_t>(c)]);
    } else if (!is_unknown || !last_was_unknown) {
      ids.push_back(id);
    }
    last_was_unknown = is_unknown;
  }
};

SentencePieceEncoder::SentencePieceEncoder(const SentencePieceModel& model, std::string_view where)
    : model_(model),
      user_symbols_([&] {
        ByteTrie trie;
        for (size_t i = 0; i < model.pieces.size(); ++i) {
          if (model.pieces[i].type == PieceType::kUserDefined)
            trie.insert(model.pieces[i].text, static_cast<int32_t>(i));
        }
        return trie;
      }()),
      normalizer_(model.normalizer, model.treat_whitespace_as_suffix, &user_symbols_, where),
      byte_ids_(256, -1) {
  lowest_score_ = std::numeric_limits<float>::max();
  const bool is_unigram = model.kind == SentencePieceModel::Kind::kUnigram;
  can_cut_ = true;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == PieceType::kUnknown) unk_id_ = id;
    if (piece.type == PieceType::kByte) byte_ids_[static_cast<size_t>(fallback_byte(piece.text))] = id;
    if (piece.type == PieceType::kNormal) lowest_score_ = std::min(lowest_score_, piece.score);
    // As SentencePiece 0.2.3 scores user symbols: above any word, and a long one above the short ones inside it.
    const bool is_user = piece.type == PieceType::kUserDefined;
    const double user_score = 0.1 * (static_cast<double>(piece.text.size()) - 1);
    scores_.push_back(is_user ? static_cast<float>(user_score) : piece.score);
    if (!is_normal_piece(piece.type)) {
      reserved_.insert(piece.text, id);
    } else if (!is_unigram || piece.type != PieceType::kUnused) {
      pieces_.insert(piece.text, id);
    }
    can_cut_ = can_cut_ && !(is_normal_piece(piece.type) && has_inner_word(piece.text));
  }
  can_cut_ = can_cut_ && pieces_.longest_prefix(kWordMark).value >= 0;
  if (model.kind != SentencePieceModel::Kind::kBpe) return;
  make_merges();
  // Without bytes for them, unknown characters fuse with their neighbours.
  if (!can_cut_ || !model.byte_fallback) return;
  inner_pairs_.resize(kPairBits);
  for (const SentencePiece& piece : model.pieces) {
    if (!is_normal_piece(piece.type)) continue;
    uint32_t last = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const Utf8Step step = decode_utf8(std::string_view(piece.text).substr(i));
      if (i > 0) inner_pairs_[pair_bit(last, step.code_point)] = true;
      last = step.code_point;
      i += static_cast<size_t>(step.length);
    }
  }
}

int32_t SentencePieceEncoder::find(std::string_view piece) const {
  for (const ByteTrie* trie : {&reserved_, &pieces_}) {
    const ByteTrie::Match match = trie->longest_prefix(piece);
    if (match.length == piece.size()) return match.value;
  }
  return unk_id_;
}

// Every split of a piece into two known parts is a merge, ranked by the piece's score.
void SentencePieceEncoder::make_merges() {
  std::map<float, uint32_t, std::greater<>> ranks;
  for (const SentencePiece& piece : model_.pieces) ranks.emplace(piece.score, 0);
  uint32_t next_rank = 0;
  for (auto& [score, rank] : ranks) rank = next_rank++;

  auto next_id = static_cast<int32_t>(model_.pieces.size());
  const auto symbol_of = [&](std::string_view text) -> int32_t {
    const ByteTrie::Match match = pieces_.longest_prefix(text);
    if (match.length == text.size()) {
      const bool is_frozen = model_.pieces[static_cast<size_t>(match.value)].type == PieceType::kUserDefined;
      return is_frozen ? -1 : match.value;
    }
    if (text.size() != utf8_length(text[0])) return -1;
    const ByteTrie::Match character = characters_.longest_prefix(text);
    if (character.value >= 0) return character.value;
    characters_.insert(text, next_id);
    return next_id++;
  };
  struct Pair {
    int32_t left, right;
    Merge merge;
  };
  std::vector<Pair> pairs;
  constexpr size_t kLongest = 4096;  // bytes; keeps a hostile piece from quadratic cost
  for (size_t i = 0; i < model_.pieces.size(); ++i) {
    const SentencePiece& piece = model_.pieces[i];
    if (!is_normal_piece(piece.type) || piece.text.size() > kLongest) continue;
    const std::string_view text = piece.text;
    for (size_t cut = utf8_length(text[0]); cut < text.size(); cut += utf8_length(text[cut])) {
      const int32_t left = symbol_of(text.substr(0, cut)), right = left < 0 ? -1 : symbol_of(text.substr(cut));
      if (right >= 0) pairs.push_back({left, right, {ranks[piece.score], static_cast<int32_t>(i)}});
    }
  }
  merges_ = std::make_unique<MergeTable>(pairs.size());
  for (const Pair& pair : pairs) merges_->insert(pair.left, pair.right, pair.merge);
}

void SentencePieceEncoder::encode(std::string_view text, std::vector<int32_t>& ids,
                                  const std::function<void()>& on_word) const {
  const std::string normal = normalizer_.normalize(text);
  if (normal.empty()) return;
  Run run{*this, ids};
  switch (model_.kind) {
    case SentencePieceModel::Kind::kUnigram:
      return encode_unigram(normal, run);
    case SentencePieceModel::Kind::kBpe:
      return can_cut_ ? encode_bpe_words(normal, ids, on_word) : encode_bpe(normal, run);
    case SentencePieceModel::Kind::kWord:
    case SentencePieceModel::Kind::kCharacter:
      return encode_words(normal, run);
  }
}

// The first place after `from` where a cut changes no id: before a ▁ as in word_cuts.h, or between two characters, not
// both ASCII, that are neighbours in no piece.
size_t SentencePieceEncoder::find_cut(std::string_view text, size_t from) const {
  if (inner_pairs_.empty()) return std::min(find_word_cut(text, from + 1), text.size());
  size_t length = 0;
  uint32_t last = valid_code_point(text, from, length);
  for (size_t i = from + length; i < text.size(); i += length) {
    const uint32_t next = valid_code_point(text, i, length);
    if ((last >= 0x80 || next >= 0x80) && !inner_pairs_[pair_bit(last, next)]) return i;
    last = next;
  }
  return text.size();
}

void SentencePieceEncoder::encode_bpe_words(std::string_view text, std::vector<int32_t>& ids,
                                            const std::function<void()>& on_word) const {
  std::array<size_t, 256> ends;
  for (size_t begin = 0, at = 0; begin < text.size(); begin = at) {
    size_t count = 0;
    for (; at < text.size() && count < ends.size(); ends[count++] = at) at = find_cut(text, at);
    PieceCache::encode_all(cache_owner_, text, begin, std::span(ends).first(count), ids,
                           [&](std::string_view word, std::vector<int32_t>& out) {
                             Run run{*this, out};
                             encode_bpe(word, run);
                           });
    if (on_word) on_word();
  }
}

void SentencePieceEncoder::encode_unigram(std::string_view text, Run& run) const {
  constexpr float kUnknownPenalty = 10.0F, kLargest = 1e5F;
  const auto score = [this](int32_t id, size_t) { return scores_[static_cast<size_t>(id)]; };
  const auto path = unigram_path<float>(text, pieces_, lowest_score_ - kUnknownPenalty, score, kLargest);
  for (const UnigramStep& step : path) {
    run.put(step.value < 0 ? unk_id_ : step.value, text.substr(step.begin, step.end - step.begin));
  }
}

void SentencePieceEncoder::encode_bpe(std::string_view text, Run& run) const {
  constexpr int32_t kOther = INT32_MAX;  // a character in no piece: merges with nothing
  std::vector<int32_t> symbols;
  symbols.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const ByteTrie::Match user = user_symbols_.longest_prefix(rest);
    const std::string_view character = rest.substr(0, utf8_length(rest[0]));
    if (user.length > 0) {
      symbols.push_back(user.value);
      i += user.length;
      continue;
    }
    ByteTrie::Match match = pieces_.longest_prefix(character);
    if (match.length != character.size()) match = characters_.longest_prefix(character);
    symbols.push_back(match.length == character.size() ? match.value : kOther);
    i += character.size();
  }
  symbols.resize(merges_->merge(symbols.data(), symbols.size()));
  for (const int32_t symbol : symbols) {
    const bool is_piece = static_cast<size_t>(symbol) < model_.pieces.size();
    const size_t length = is_piece ? model_.pieces[static_cast<size_t>(symbol)].text.size() : utf8_length(text[0]);
    put_symbol(symbol, text.substr(0, length), run);
    text.remove_prefix(length);
  }
}

// A piece marked as unused is split into what it was merged from.
void SentencePieceEncoder::put_symbol(int32_t symbol, std::string_view text, Run& run) const {
  const bool is_piece = static_cast<size_t>(symbol) < model_.pieces.size();
  if (!is_piece || model_.pieces[static_cast<size_t>(symbol)].type != PieceType::kUnused) {
    run.put(is_piece ? symbol : find(text), text);
    return;
  }
  struct Part {
    int32_t symbol;
    std::string_view text;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = text.substr(i, utf8_length(text[i]));
    ByteTrie::Match match = pieces_.longest_prefix(character);
    if (match.length != character.size()) match = characters_.longest_prefix(character);
    parts.push_back({match.value, character});
    i += character.size();
  }
  if (parts.size() == 1) return run.put(symbol, text);
  for (;;) {
    Merge best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const Merge merge = merges_->find(parts[i].symbol, parts[i + 1].symbol);
      if (merge.id != symbol && merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == UINT32_MAX) break;
    parts[at] = {best.id, {parts[at].text.data(), parts[at].text.size() + parts[at + 1].text.size()}};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  for (const Part& part : parts) put_symbol(part.symbol, part.text, run);
}

// Words begin (or end) with a visible blank; characters may be user symbols.
void SentencePieceEncoder::encode_words(std::string_view text, Run& run) const {
  const bool by_word = model_.kind == SentencePieceModel::Kind::kWord;
  while (!text.empty()) {
    size_t length = 0;
    if (!by_word) {
      const ByteTrie::Match user = user_symbols_.longest_prefix(text);
      length = user.length > 0 ? user.length : utf8_length(text[0]);
    } else if (model_.treat_whitespace_as_suffix) {
      const size_t at = text.find(kWordMark);
      length = at == std::string_view::npos ? text.size() : at + kWordMark.size();
    } else {
      length = std::min(text.find(kWordMark, 1), text.size());
    }
    run.put(find(text.substr(0, length)), text.substr(0, length));
    text.remove_prefix(length);
  }
}

}  // namespace megalith
