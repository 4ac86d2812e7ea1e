// From options to batches: opens the data sets a run names, splits and blends them, and gives a BatchSource a split.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "core/log.h"
#include "data/batch_source.h"
#include "data/data_options.h"
#include "data/sample_maker.h"
#include "data/split.h"

namespace megalith {

// What the data depends on beyond its own options.
struct DataSetup {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  int64_t vocab_size = INT64_MAX;  // ids at or above it are refused
  std::optional<int64_t> eod;
  int64_t pad_id = -1;
  // Samples that the run will read of each split: 0 leaves the split out, nothing takes one pass.
  // Megatron's: train_iters · gbs; (train_iters / eval_interval + 1) · eval_iters · gbs; eval_iters · gbs.
  std::array<std::optional<int64_t>, 3> num_samples = {0, 0, 0};
};

struct DataSets {
  std::unique_ptr<BatchSource> train, valid, test;  // null when the run does not read the split or it does not exist
  BatchSource* of(Split split) const { return (this->*kMembers[static_cast<size_t>(split)]).get(); }
  void set(Split split, std::unique_ptr<BatchSource> source) {
    this->*kMembers[static_cast<size_t>(split)] = std::move(source);
  }

 private:
  static constexpr std::array kMembers = {&DataSets::train, &DataSets::valid, &DataSets::test};
};

// The splits that the run reads, each from what `make` gives for it and its samples; null where it does not exist.
DataSets make_splits(
    const DataSetup& setup,
    const std::function<std::unique_ptr<BatchSource>(Split split, std::optional<int64_t> num_samples)>& make);

// Samples of the maker's kind. UserError for missing or damaged files, empty splits and options that contradict each
// other.
DataSets make_data_sets(const DataOptions& options, const DataSetup& setup, const SampleMaker& maker, Logger& log);
// Texts, of which each token predicts the next (gpt_dataset.h).
DataSets make_data_sets(const DataOptions& options, const DataSetup& setup, Logger& log);

}  // namespace megalith
