// Batches of instruction data: packed or padded sequences, pass after pass, each pass in a new order.
#pragma once

#include <memory>

#include "core/log.h"
#include "data/data_sets.h"
#include "data/sft_packs.h"
#include "data/sft_reference.h"
#include "data/sft_set.h"

namespace megalith {

// The sequences of a pack's samples (SftSet::num_sequences), in their order, in at most s tokens: of pairs each sample
// gives two, and of those that are too long together both are cut.
std::vector<SftPiece> sequences_of_pack(const SftSet& set, std::span<const SftPiece> pack);

// A sequence as the model takes it, s tokens each. Pieces are of sequences. A piece's last token predicts what follows
// it in its sequence, with that token's weight, and nothing where that ends.
//   documents  number of the piece within the row; padding has one of its own. Null: they are not wanted
void fill_sft_row(const SftSet& set, std::span<const SftPiece> pack, int64_t s, bool restarts_positions,
                  int64_t* tokens, int64_t* labels, float* weights, int64_t* positions, int32_t* documents);

// Sequence g of the run is sequence g % n of pass g / n, whose order follows from the seed and the number of the pass
// only (core/permutation.h): it knows of no layout, and resuming replays nothing. Validation keeps the order of the
// rows.
class SftBatchSource final : public BatchSource {
 public:
  SftBatchSource(std::shared_ptr<const SftSet> set, SftPacks packs, const SftOptions& options, const DataSetup& setup,
                 bool shuffles);

  Batch read(const DataPosition& position) override;
  int64_t num_samples() const override { return packs_.num_packs(); }
  std::string name() const override { return set_->prefix(); }
  std::optional<DataSize> data_size() const override {
    return DataSize{packs_.num_samples(), packs_.num_tokens(), static_cast<double>(packs_.num_packs())};
  }

  // What rows of pairs get in reference_log_probs; without it they have none.
  void set_reference(std::shared_ptr<const SftReference> reference) { reference_ = std::move(reference); }
  const std::shared_ptr<const SftSet>& set() const { return set_; }
  // The sequences of the row at this place in the order of the run.
  std::vector<SftPiece> sequences_at(int64_t place) const;

 private:
  void add_pairs(Batch& batch, const std::vector<std::vector<SftPiece>>& rows) const;

  std::shared_ptr<const SftSet> set_;
  std::shared_ptr<const SftReference> reference_;
  SftPacks packs_;
  bool keeps_apart_, shuffles_;
  int64_t sequence_length_, vocab_size_;
  uint64_t order_key_;
};

// All samples of a set in the order of the rows, as these options pack them.
std::unique_ptr<SftBatchSource> make_whole_sft_source(std::shared_ptr<const SftSet> set, const DataOptions& options,
                                                      const DataSetup& setup);

// The sets of prepared instruction data (train/instruction_data.h) that the options name by their prefixes. Their packs
// are kept as the indices of texts are (index_cache.h), in data_cache_path or in {prefix}/cache. UserError for samples
// longer than the sequence, and for a training set without samples.
DataSets make_sft_sets(const DataOptions& options, const DataSetup& setup, Logger& log);

// Sequences of one pass over the training part, as make_sft_sets() makes them; the same errors.
int64_t count_sft_sequences(const DataOptions& options, int64_t sequence_length);

}  // namespace megalith
