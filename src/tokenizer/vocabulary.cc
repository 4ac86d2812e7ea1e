// A vocabulary; see vocabulary.h.
#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>

#include "core/checksum.h"
#include "core/error.h"

namespace megalith {

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int32_t>>& tokens,
                       const std::vector<std::pair<std::string, int32_t>>& hidden) {
  int32_t last_id = -1;
  size_t num_bytes = 0;
  for (const auto* list : {&tokens, &hidden}) {
    for (const auto& [bytes, id] : *list) {
      last_id = std::max(last_id, id);
      num_bytes += bytes.size();
    }
  }
  block_.reserve(num_bytes);
  starts_.resize(static_cast<size_t>(last_id + 1));
  mask_ = std::bit_ceil(2 * tokens.size() + 2) - 1;
  slots_.assign(mask_ + 1, -1);
  for (const auto& [bytes, id] : tokens) {
    const bool is_new = find(bytes) < 0;
    place(bytes, id);
    if (!is_new) continue;
    uint64_t slot = checksum64(bytes) & mask_;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask_;
    slots_[slot] = id;
  }
  for (const auto& [bytes, id] : hidden) place(bytes, id);
}

void Vocabulary::place(const std::string& bytes, int32_t id) {
  starts_[static_cast<size_t>(id)] = {narrow<uint32_t>(block_.size()), narrow<uint32_t>(bytes.size()), true};
  block_ += bytes;
}

bool Vocabulary::has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < starts_.size() && starts_[static_cast<size_t>(id)].is_token;
}

int32_t Vocabulary::find(std::string_view bytes) const {
  for (uint64_t slot = checksum64(bytes) & mask_; slots_[slot] >= 0; slot = (slot + 1) & mask_) {
    if (this->bytes(slots_[slot]) == bytes) return slots_[slot];
  }
  return -1;
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= starts_.size()) return {};
  const Place place = starts_[static_cast<size_t>(id)];
  return std::string_view(block_).substr(place.offset, place.length);
}

}  // namespace megalith
