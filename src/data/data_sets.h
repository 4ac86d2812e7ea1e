// From options to batches: opens, splits and blends a run's data sets into a BatchSource for each split.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "data/batch_source.h"
#include "data/data_options.h"
#include "data/sample_maker.h"
#include "data/split.h"

namespace megalith {

// Further inputs that the data depends on.
struct DataSetup {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  int64_t vocab_size = INT64_MAX;  // ids at or above it are refused
  std::optional<int64_t> eod;
  int64_t pad_id = -1;
  // Samples the run reads of each split: 0 omits the split, nothing is one pass. Megatron's: train_iters · gbs;
  // (train_iters / eval_interval + 1) · eval_iters · gbs; eval_iters · gbs.
  std::array<std::optional<int64_t>, 3> num_samples = {0, 0, 0};
};

struct NamedSource {
  std::string name;  // "validation", "validation-code", "test"
  BatchSource* source = nullptr;
};

struct DataSets {
  std::unique_ptr<BatchSource> train, valid, test;  // null if not read or absent
  // Instead of `valid`: several validation sets (validation_sets()).
  std::vector<std::pair<std::string, std::unique_ptr<BatchSource>>> valid_sets;

  // The sets that an evaluation reads.
  std::vector<NamedSource> evaluated(Split split) const;
  std::vector<BatchSource*> all() const;
  BatchSource* of(Split split) const { return (this->*kMembers[static_cast<size_t>(split)]).get(); }
  void set(Split split, std::unique_ptr<BatchSource> source) {
    this->*kMembers[static_cast<size_t>(split)] = std::move(source);
  }

 private:
  static constexpr std::array kMembers = {&DataSets::train, &DataSets::valid, &DataSets::test};
};

// `make`'s result for each split that the run reads; null for one that does not exist.
DataSets make_splits(
    const DataSetup& setup,
    const std::function<std::unique_ptr<BatchSource>(Split split, std::optional<int64_t> num_samples)>& make);

// Adds several validation sets (validation_sets()), opened by `make`, if the run reads them.
void add_validation_sets(const DataOptions& options, const DataSetup& setup, DataSets& sets,
                         const std::function<std::unique_ptr<BatchSource>(const std::string& path,
                                                                          std::optional<int64_t> num_samples)>& make);

// Samples of the maker's kind. UserError for missing or damaged files, empty splits, contradictory options.
DataSets make_data_sets(const DataOptions& options, const DataSetup& setup, const SampleMaker& maker, Logger& log);
// Texts for next-token prediction (gpt_dataset.h).
DataSets make_data_sets(const DataOptions& options, const DataSetup& setup, Logger& log);

}  // namespace megalith
