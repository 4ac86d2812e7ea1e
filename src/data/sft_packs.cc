// See sft_packs.h. The greedy order is torchtune's (torchtune/datasets/_packed.py).
#include "data/sft_packs.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace megalith {
namespace {

// Finds the first of a row of bins with room enough in logarithmic time: a tree of the most room below each node.
class RoomTree {
 public:
  explicit RoomTree(size_t count, int64_t room)
      : size_(std::bit_ceil(std::max<size_t>(count, 1))), room_(2 * size_, 0) {
    for (size_t i = 0; i < count; ++i) room_[size_ + i] = room;
    for (size_t i = size_ - 1; i > 0; --i) room_[i] = std::max(room_[2 * i], room_[2 * i + 1]);
  }

  size_t first_with(int64_t wanted) const {
    size_t node = 1;
    while (node < size_) node = room_[2 * node] >= wanted ? 2 * node : 2 * node + 1;
    return node - size_;
  }
  int64_t room(size_t bin) const { return room_[size_ + bin]; }
  void set(size_t bin, int64_t room) {
    size_t node = size_ + bin;
    room_[node] = room;
    for (node /= 2; node > 0; node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
  }

 private:
  size_t size_;
  std::vector<int64_t> room_;
};

}  // namespace

SftPacks::SftPacks(int64_t begin, int64_t end, const std::function<int64_t(int64_t sample)>& length, int64_t seq_length,
                   bool splits, const SftOptions& options) {
  for (int64_t i = begin; i < end; ++i) pieces_.push_back({i, 0, length(i)});
  const int64_t most = options.max_samples_per_sequence.value_or(INT64_MAX);
  if (!options.enable_packed_sequences) {
    one_each();
  } else if (splits) {
    fill_split(seq_length);
  } else if (options.sft_packing == SftPacking::kGreedy) {
    pack_greedily(seq_length, most);
  } else {
    pack_first_fit_decreasing(seq_length, most);
  }
  begins_.push_back(static_cast<int64_t>(pieces_.size()));
}

void SftPacks::one_each() {
  for (size_t i = 0; i < pieces_.size(); ++i) begins_.push_back(static_cast<int64_t>(i));
}

void SftPacks::fill_split(int64_t seq_length) {
  std::vector<SftPiece> cut;
  int64_t used = seq_length;
  for (SftPiece piece : pieces_) {
    while (piece.length > 0) {
      if (used == seq_length) {
        begins_.push_back(static_cast<int64_t>(cut.size()));
        used = 0;
      }
      const int64_t taken = std::min(piece.length, seq_length - used);
      cut.push_back({piece.sample, piece.offset, taken});
      piece.offset += taken;
      piece.length -= taken;
      used += taken;
    }
  }
  pieces_ = std::move(cut);
}

void SftPacks::pack_greedily(int64_t seq_length, int64_t most) {
  int64_t used = seq_length + 1, count = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (used + pieces_[i].length > seq_length || count == most) {
      begins_.push_back(static_cast<int64_t>(i));
      used = count = 0;
    }
    used += pieces_[i].length;
    ++count;
  }
}

void SftPacks::pack_first_fit_decreasing(int64_t seq_length, int64_t most) {
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const auto& a, const auto& b) { return a.length > b.length; });
  RoomTree tree(pieces_.size(), seq_length);
  std::vector<std::vector<SftPiece>> packs;
  for (const SftPiece& piece : pieces_) {
    const size_t bin = tree.first_with(piece.length);
    if (bin >= packs.size()) packs.resize(bin + 1);
    packs[bin].push_back(piece);
    const bool is_full = static_cast<int64_t>(packs[bin].size()) == most;
    tree.set(bin, is_full ? -1 : tree.room(bin) - piece.length);
  }
  pieces_.clear();
  for (const auto& pack : packs) {
    begins_.push_back(static_cast<int64_t>(pieces_.size()));
    pieces_.insert(pieces_.end(), pack.begin(), pack.end());
  }
}

std::span<const SftPiece> SftPacks::pack(int64_t i) const {
  MEGALITH_CHECK(i >= 0 && i < num_packs(), "pack {} of {}", i, num_packs());
  const auto at = static_cast<size_t>(i);
  return std::span(pieces_).subspan(static_cast<size_t>(begins_[at]),
                                    static_cast<size_t>(begins_[at + 1] - begins_[at]));
}

}  // namespace megalith
