// Several sets of instruction data in one stream, in the shares that the options say. Sets are prepared, packed and
// shuffled by themselves, so a sequence holds samples of one set, and files made of a set serve every mixture.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/row_mix.h"
#include "kinds/text/sft_batches.h"

namespace megalith {

// Shares, of samples, become those of sequences by the number of samples in a sequence.
//   rows   of each of options.sets, at least one sequence each
//   moves  as RowMix
RowMix mix_of(const SftOptions& options, std::span<const std::shared_ptr<SftRows>> rows, uint64_t key,
              bool moves = true);

// Rows of all sets, numbered one set after another, with set_ids.
class SftMixedRows final : public RowReader {
 public:
  SftMixedRows(std::vector<std::shared_ptr<SftRows>> sets, const RowMix& mix);

  int64_t num_rows() const override { return begins_.back(); }
  std::string name() const override;
  std::optional<DataSize> size() const override { return size_; }
  Batch read(std::span<const int64_t> rows) const override;
  double work(int64_t row) const override;

  const std::vector<std::shared_ptr<SftRows>>& sets() const { return sets_; }

 private:
  struct Place {
    size_t set;
    int64_t row;
  };
  Place place_of(int64_t number) const;

  std::vector<std::shared_ptr<SftRows>> sets_;
  std::vector<int64_t> begins_ = {0};
  DataSize size_;  // of a pass
};

// "code: 120 of 480 sequences a pass, share 0.25"; a line for each set.
std::vector<std::string> describe(const RowMix& mix);

}  // namespace megalith
