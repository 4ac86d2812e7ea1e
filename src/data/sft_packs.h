// How samples of instruction data become sequences: which parts of which samples lie in each.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/sft_options.h"

namespace megalith {

// Tokens [offset, offset + length) of a sample.
struct SftPiece {
  int64_t sample = 0, offset = 0, length = 0;
  bool operator==(const SftPiece&) const = default;
};

class SftPacks {
 public:
  // Samples [begin, end) with these lengths, in sequences of seq_length, each of which is at most seq_length long
  // unless `splits`: then the samples fill sequences to the last token, and go on in the next one.
  SftPacks(int64_t begin, int64_t end, const std::function<int64_t(int64_t sample)>& length, int64_t seq_length,
           bool splits, const SftOptions& options);

  int64_t num_packs() const { return static_cast<int64_t>(begins_.size()) - 1; }
  std::span<const SftPiece> pack(int64_t i) const;

 private:
  void one_each();
  void fill_split(int64_t seq_length);
  void pack_greedily(int64_t seq_length, int64_t most);
  void pack_first_fit_decreasing(int64_t seq_length, int64_t most);

  std::vector<SftPiece> pieces_;
  std::vector<int64_t> begins_;  // of each pack in pieces_, and the end
};

}  // namespace megalith
