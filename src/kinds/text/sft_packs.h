// Assigns samples of instruction data, or parts of them, to sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/error.h"
#include "data/index_array.h"
#include "data/sft_options.h"

namespace megalith {

// Tokens [offset, offset + length) of a sample.
struct SftPiece {
  int64_t sample = 0, offset = 0, length = 0;
  bool operator==(const SftPiece&) const = default;
};

class SftPacks {
 public:
  // Packs samples [begin, end) with these lengths, each at most seq_length, into sequences of seq_length. With `splits`
  // samples fill sequences to the last token and continue in the next one.
  SftPacks(int64_t begin, int64_t end, const std::function<int64_t(int64_t sample)>& length, int64_t seq_length,
           bool splits, const SftOptions& options);
  // From another object's arrays(), such as read from a file; have_fitting_shapes() must hold.
  explicit SftPacks(std::vector<IndexArray> arrays);

  int64_t num_packs() const { return begins_.rows() - 1; }
  // UserError for damaged arrays; the caller checks that the pieces' samples exist.
  std::vector<SftPiece> pack(int64_t i) const;
  // Samples that begin in the packs, and the tokens of their pieces.
  int64_t num_samples() const { return size_.at(0); }
  int64_t num_tokens() const { return size_.at(1); }

  std::vector<IndexArray> arrays() const { return {pieces_, begins_, size_}; }
  static std::vector<std::string> array_names() { return {"piece_index", "pack_index", "size"}; }
  static bool have_fitting_shapes(const std::vector<IndexArray>& arrays);

 private:
  IndexArray pieces_;  // (pieces, 3): sample, offset, length
  IndexArray begins_;  // (packs + 1): of each pack in pieces_, and the end
  IndexArray size_;    // (2): num_samples, num_tokens
};

// For packs that do not fit the samples.
UserError damaged_packs_error(int64_t pack);

}  // namespace megalith
