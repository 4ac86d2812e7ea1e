// Batches of instruction data. Each training epoch visits the packs in its own order, derived from the seed;
// validation, and training without sft_shuffle, keep the order of the rows.
#pragma once

#include <memory>

#include "core/log.h"
#include "data/data_sets.h"
#include "kinds/text/sft_packs.h"
#include "kinds/text/sft_reference.h"
#include "kinds/text/sft_set.h"

namespace megalith {

// (b, most_pairs()) float32: ratings of the pairs' answers (nn/preference_loss.h). Rated answers.
inline constexpr std::string_view kRatingSigns = "rating_signs";

// Sequences of a pack's samples (SftSet::num_sequences), in order, at most s tokens in all: each sample of pairs gives
// two, both cut if too long together.
std::vector<SftPiece> sequences_of_pack(const SftSet& set, std::span<const SftPiece> pack);

// Fills a row of a batch (make_batch()). Pieces are of sequences. A piece's last token predicts the next one of its
// sequence, with that token's weight, and nothing at the sequence's end. With document_ids each piece is a document, as
// is padding, and positions restart in each.
void fill_sft_row(const SftSet& set, std::span<const SftPiece> pack, const Batch& batch, int64_t row);

// The packs of a set: packed or padded sequences.
class SftRows final : public RowReader {
 public:
  SftRows(std::shared_ptr<const SftSet> set, SftPacks packs, const SftOptions& options, const DataSetup& setup);

  int64_t num_rows() const override { return packs_.num_packs(); }
  std::string name() const override { return set_->prefix(); }
  std::optional<DataSize> size() const override {
    return DataSize{packs_.num_samples(), packs_.num_tokens(), static_cast<double>(packs_.num_packs())};
  }
  Batch read(std::span<const int64_t> rows) const override;
  // Pairs of queries and keys that attention computes, padding's included.
  double work(int64_t row) const override;

  // Source of reference_log_probs for rows of pairs; without it they have none.
  void set_reference(std::shared_ptr<const SftReference> reference) { reference_ = std::move(reference); }
  const std::shared_ptr<const SftSet>& set() const { return set_; }
  // The sequences of a row.
  std::vector<SftPiece> sequences(int64_t row) const;

 private:
  void add_pairs(Batch& batch, const std::vector<std::vector<SftPiece>>& rows) const;

  std::shared_ptr<const SftSet> set_;
  std::shared_ptr<const SftReference> reference_;
  SftPacks packs_;
  bool keeps_apart_;
  int64_t sequence_length_, vocab_size_;
};

// All samples of a set, packed according to the options.
std::shared_ptr<SftRows> make_whole_sft_rows(std::shared_ptr<const SftSet> set, const DataOptions& options,
                                             const DataSetup& setup);

// The sets of prepared instruction data (instruction_data.h) whose prefixes the options name. Packs are cached like
// indices of texts (index_cache.h), in data_cache_path or {prefix}/cache. UserError for samples longer than the
// sequence, and for a training set without samples.
DataSets make_sft_sets(const DataOptions& options, const DataSetup& setup, Logger& log);

// Sequences in one pass over the training part of make_sft_sets(); same errors.
int64_t count_sft_sequences(const DataOptions& options, int64_t sequence_length);

}  // namespace megalith
