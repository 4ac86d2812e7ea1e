// See sft_packs.h. The greedy order is torchtune's (torchtune/datasets/_packed.py).
#include "kinds/text/sft_packs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "data/balance.h"

namespace megalith {
namespace {

// Finds the first bin with enough room in logarithmic time: a tree of the largest room below each node.
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

// Packs under construction.
struct OpenPacks {
  std::vector<SftPiece> pieces;
  std::vector<int64_t> begins;  // of each pack in pieces

  void begin_pack() { begins.push_back(std::ssize(pieces)); }
};

OpenPacks one_each(const std::vector<SftPiece>& samples) {
  OpenPacks packs;
  for (const SftPiece& sample : samples) {
    packs.begin_pack();
    packs.pieces.push_back(sample);
  }
  return packs;
}

OpenPacks fill_split(const std::vector<SftPiece>& samples, int64_t seq_length) {
  OpenPacks packs;
  int64_t used = seq_length;
  for (SftPiece rest : samples) {
    while (rest.length > 0) {
      if (used == seq_length) {
        packs.begin_pack();
        used = 0;
      }
      const int64_t taken = std::min(rest.length, seq_length - used);
      packs.pieces.push_back({rest.sample, rest.offset, taken});
      rest.offset += taken;
      rest.length -= taken;
      used += taken;
    }
  }
  return packs;
}

OpenPacks pack_greedily(const std::vector<SftPiece>& samples, int64_t seq_length, int64_t most) {
  OpenPacks packs;
  int64_t used = seq_length + 1, count = 0;
  for (const SftPiece& sample : samples) {
    if (used + sample.length > seq_length || count == most) {
      packs.begin_pack();
      used = count = 0;
    }
    packs.pieces.push_back(sample);
    used += sample.length;
    ++count;
  }
  return packs;
}

OpenPacks pack_first_fit_decreasing(std::vector<SftPiece> samples, int64_t seq_length, int64_t most) {
  std::stable_sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.length > b.length; });
  RoomTree tree(samples.size(), seq_length);
  std::vector<std::vector<SftPiece>> bins;
  for (const SftPiece& sample : samples) {
    const size_t bin = tree.first_with(sample.length);
    if (bin >= bins.size()) bins.resize(bin + 1);
    bins[bin].push_back(sample);
    const bool is_full = std::ssize(bins[bin]) == most;
    tree.set(bin, is_full ? -1 : tree.room(bin) - sample.length);
  }
  OpenPacks packs;
  for (const auto& bin : bins) {
    packs.begin_pack();
    packs.pieces.insert(packs.pieces.end(), bin.begin(), bin.end());
  }
  return packs;
}

OpenPacks with_balanced_orders(OpenPacks packs, int64_t seq_length) {
  for (size_t pack = 0; pack < packs.begins.size(); ++pack) {
    const auto first = packs.pieces.begin() + packs.begins[pack];
    const bool is_last = pack + 1 == packs.begins.size();
    const int64_t end = is_last ? std::ssize(packs.pieces) : packs.begins[pack + 1];
    const std::vector<SftPiece> pieces(first, packs.pieces.begin() + end);
    std::vector<int64_t> lengths;
    for (const SftPiece& piece : pieces) lengths.push_back(piece.length);
    std::ranges::transform(balanced_order(lengths, seq_length), first, [&](size_t i) { return pieces[i]; });
  }
  return packs;
}

OpenPacks pack_by_option(std::vector<SftPiece> samples, int64_t seq_length, bool splits, const SftOptions& options) {
  const int64_t most = options.max_samples_per_sequence.value_or(INT64_MAX);
  if (!options.enable_packed_sequences) return one_each(samples);
  if (splits) return fill_split(samples, seq_length);
  if (options.sft_packing == SftPacking::kGreedy) return pack_greedily(samples, seq_length, most);
  return pack_first_fit_decreasing(std::move(samples), seq_length, most);
}

OpenPacks pack_samples(std::vector<SftPiece> samples, int64_t seq_length, bool splits, const SftOptions& options) {
  OpenPacks packs = pack_by_option(std::move(samples), seq_length, splits, options);
  return options.balance_sequences ? with_balanced_orders(std::move(packs), seq_length) : packs;
}

}  // namespace

UserError damaged_packs_error(int64_t pack) {
  return UserError(fmt::format("the cached index of packs is damaged (pack {})", pack),
                   "delete the files *-SFTDataset-* in data_cache_path, or in the folder cache beside the prepared "
                   "rows");
}

SftPacks::SftPacks(int64_t begin, int64_t end, const std::function<int64_t(int64_t sample)>& length, int64_t seq_length,
                   bool splits, const SftOptions& options) {
  std::vector<SftPiece> samples;
  for (int64_t i = begin; i < end; ++i) samples.push_back({i, 0, length(i)});
  OpenPacks packs = pack_samples(std::move(samples), seq_length, splits, options);
  packs.begin_pack();  // the end
  std::vector<int64_t> numbers;
  int64_t num_samples = 0, num_tokens = 0;
  for (const SftPiece& piece : packs.pieces) {
    numbers.insert(numbers.end(), {piece.sample, piece.offset, piece.length});
    num_samples += piece.offset == 0 ? 1 : 0;
    num_tokens += piece.length;
  }
  pieces_ = IndexArray::of(std::move(numbers), 3);
  begins_ = IndexArray::of(std::move(packs.begins));
  size_ = IndexArray::of(std::vector<int64_t>{num_samples, num_tokens});
}

SftPacks::SftPacks(std::vector<IndexArray> arrays)
    : pieces_(std::move(arrays.at(0))), begins_(std::move(arrays.at(1))), size_(std::move(arrays.at(2))) {}

bool SftPacks::have_fitting_shapes(const std::vector<IndexArray>& arrays) {
  return arrays.size() == 3 && arrays[0].columns() == 3 && arrays[1].columns() == 1 && arrays[1].rows() >= 1 &&
         arrays[2].columns() == 1 && arrays[2].rows() == 2;
}

std::vector<SftPiece> SftPacks::pack(int64_t i) const {
  MEGALITH_CHECK(i >= 0 && i < num_packs(), "pack {} of {}", i, num_packs());
  const int64_t first = begins_.at(i), end = begins_.at(i + 1);
  if (first < 0 || first > end || end > pieces_.rows()) {
    throw damaged_packs_error(i);
  }
  std::vector<SftPiece> pieces;
  for (int64_t k = first; k < end; ++k) pieces.push_back({pieces_.at(k, 0), pieces_.at(k, 1), pieces_.at(k, 2)});
  return pieces;
}

}  // namespace megalith
