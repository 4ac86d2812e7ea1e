// Blending: one stream of samples from several data sets in given proportions.
// Source: megatron/core/datasets/blended_dataset.py and helpers.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/index_array.h"
#include "data/sample_source.h"
#include "data/split.h"

namespace megalith {

struct BlendSpec {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // empty, or one for each prefix, as given
  bool is_single() const { return prefixes.size() == 1 && weights.empty(); }
};

// An even number of items is weight, prefix, weight, prefix …, unless no item in a weight's place is a number; else all
// are prefixes. UserError naming `option` for weights that are not positive numbers.
BlendSpec parse_blend(const std::vector<std::string>& items, std::string_view option);

// Divided by their sum, added in numpy.sum's order.
std::vector<double> normalize_weights(const std::vector<double>& weights);

// Greedy choice closest to the weights: sample i takes the smallest k that maximises weights[k] · max(i, 1) - count[k].
// Two arrays of `size`: data set (int16) and its sample (int64).
std::pair<IndexArray, IndexArray> build_blend_indices(const std::vector<double>& normalized_weights, int64_t size);
// Likewise for all samples of data sets of these sizes, in proportion; exhausted ones are skipped.
std::pair<IndexArray, IndexArray> build_exhaustive_blend_indices(const std::vector<int64_t>& sizes);

class BlendedDataset final : public SampleSource {
 public:
  // size  samples of the blend; nothing: every sample of every data set, in proportion to their sizes. UserError when a
  //       data set has fewer samples than the blend takes from it.
  BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets, const std::vector<double>& weights,
                 std::optional<int64_t> size, Split split, const std::optional<std::filesystem::path>& cache_folder,
                 Logger& log);

  int64_t num_samples() const override { return dataset_index_.rows(); }
  void read(int64_t index, std::span<int64_t> out) const override;
  std::string name() const override;
  std::optional<DataSize> size() const override;  // of all data sets
  // Data set of sample `index`, and its sample there.
  std::pair<int64_t, int64_t> locate(int64_t index) const {
    return {dataset_index_.at(index), dataset_sample_index_.at(index)};
  }

 private:
  std::pair<int64_t, int64_t> checked_place(int64_t index) const;
  void check_supply() const;

  std::vector<std::unique_ptr<SampleSource>> datasets_;
  IndexArray dataset_index_, dataset_sample_index_;
};

}  // namespace megalith
