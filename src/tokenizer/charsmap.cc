#include "tokenizer/charsmap.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/error.h"
#include "tokenizer/utf8.h"

namespace megalith {
static_assert(std::endian::native == std::endian::little);
namespace {

// True for the second to last bytes of a character.
bool is_inside_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

}  // namespace

Charsmap::Charsmap(std::string_view blob, std::string_view where) {
  uint32_t trie_bytes = 0;
  const bool has_size = blob.size() > sizeof trie_bytes;
  if (has_size) std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  if (!has_size || trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= blob.size() - sizeof trie_bytes) {
    throw UserError(
        fmt::format("{}: the precompiled map of characters has {} bytes, its trie {}", where, blob.size(), trie_bytes),
        "the file was cut or damaged; fetch it again");
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data() + sizeof trie_bytes, trie_bytes);
  replacements_ = blob.substr(sizeof trie_bytes + trie_bytes);
  replacements_ += '\0';  // terminates a damaged last replacement
  // Later steps trust normalised texts to be UTF-8.
  if (!is_valid_utf8(replacements_)) {
    throw UserError(fmt::format("{}: the precompiled map of characters puts in what is not UTF-8", where),
                    "the file was damaged; fetch it again");
  }
}

std::string_view Charsmap::replacement_at(uint32_t offset) const {
  if (offset >= replacements_.size() || is_inside_character(replacements_[offset])) return {};
  return replacements_.c_str() + offset;
}

// Units, as in Darts: bit 8: a key may end here; bits 10–30 (shifted by 8 more if bit 9 is set): offset to the
// children; low byte and bit 31: the label that a child must carry. A key's value is at its child 0.
// Returns whether the text's end was reached.
template <typename OnMatch>
bool Charsmap::walk(std::string_view text, OnMatch&& on_match) const {
  if (units_.empty()) return false;
  const auto offset_of = [](uint32_t unit) { return size_t{(unit >> 10) << ((unit & (1u << 9)) >> 6)}; };
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) return false;
    node ^= byte;
    if (node >= units_.size()) return false;
    const uint32_t unit = units_[node];
    if ((unit & ((1u << 31) | 0xFF)) != byte) return false;
    node ^= offset_of(unit);
    if (node >= units_.size()) return false;
    const bool is_cut = i + 1 < text.size() && is_inside_character(text[i + 1]);
    if (((unit >> 8) & 1) && !is_cut) {
      if (!on_match(i + 1, units_[node] & ((1u << 31) - 1))) return false;
    }
  }
  return true;
}

Charsmap::Match Charsmap::longest_prefix(std::string_view text) const {
  size_t length = 0;
  uint32_t value = 0;
  walk(text, [&](size_t matched, uint32_t at) {
    length = matched;
    value = at;
    return true;
  });
  return length == 0 ? Match{} : Match{length, replacement_at(value)};
}

Charsmap::Match Charsmap::shortest_prefix(std::string_view text) const {
  Match match;
  walk(text, [&](size_t matched, uint32_t at) {
    match = {matched, replacement_at(at)};
    return false;
  });
  return match;
}

bool Charsmap::touches(std::string_view text) const {
  bool has_match = false;
  const bool is_alive = walk(text, [&](size_t, uint32_t) {
    has_match = true;
    return false;
  });
  return has_match || is_alive;
}

}  // namespace megalith
