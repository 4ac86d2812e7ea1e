// Blending; see blend.h.
#include "data/blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/index_cache.h"

namespace megalith {
namespace {

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

BlendSpec parse_blend(const std::vector<std::string>& items, std::string_view option) {
  BlendSpec blend;
  bool has_weight = false;
  if (items.size() % 2 == 0) {
    for (size_t i = 0; i < items.size(); i += 2) has_weight = has_weight || parse_number(items[i]).has_value();
  }
  if (!has_weight) {
    blend.prefixes = items;
    return blend;
  }
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto weight = parse_number(items[i]);
    if (!weight || !(*weight > 0) || !std::isfinite(*weight)) {
      throw UserError(fmt::format("{}: '{}' stands where the weight of {} is expected", option, items[i], items[i + 1]),
                      fmt::format("write --{} 0.7 first_prefix 0.3 second_prefix, or prefixes alone", option));
    }
    blend.weights.push_back(*weight);
    blend.prefixes.push_back(items[i + 1]);
  }
  return blend;
}

std::vector<double> normalize_weights(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> normalized;
  for (const double weight : weights) normalized.push_back(weight / sum);
  return normalized;
}

std::pair<IndexArray, IndexArray> build_blend_indices(const std::vector<double>& weights, int64_t size) {
  MEGALITH_CHECK(weights.size() < INT16_MAX, "{} data sets in one blend", weights.size());
  std::vector<int16_t> dataset_index(static_cast<size_t>(size));
  std::vector<int64_t> dataset_sample_index(static_cast<size_t>(size));
  std::vector<int64_t> counts(weights.size(), 0);
  for (int64_t i = 0; i < size; ++i) {
    const auto position = static_cast<double>(std::max<int64_t>(i, 1));
    size_t best = 0;
    double best_error = weights[0] * position - static_cast<double>(counts[0]);
    for (size_t k = 1; k < weights.size(); ++k) {
      const double error = weights[k] * position - static_cast<double>(counts[k]);
      if (error > best_error) {
        best_error = error;
        best = k;
      }
    }
    dataset_index[static_cast<size_t>(i)] = static_cast<int16_t>(best);
    dataset_sample_index[static_cast<size_t>(i)] = counts[best]++;
  }
  return {IndexArray::of(std::move(dataset_index)), IndexArray::of(std::move(dataset_sample_index))};
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets, const std::vector<double>& weights,
                               int64_t size, Split split, const std::optional<std::filesystem::path>& cache_folder,
                               Logger& log)
    : datasets_(std::move(datasets)) {
  MEGALITH_CHECK(datasets_.size() == weights.size() && !datasets_.empty(), "{} weights for {} data sets",
                 weights.size(), datasets_.size());
  const std::vector<double> normalized = normalize_weights(weights);
  OrderedJson description;
  description["class"] = "BlendedDataset";
  for (const auto& dataset : datasets_) description["datasets"].push_back(dataset->name());
  description["split"] = split_name(split);
  description["weights"] = normalized;
  description["size"] = size;
  const IndexCacheKey key{
      "BlendedDataset", std::string(split_name(split)), description.dump(4), {"dataset_index", "dataset_sample_index"}};
  std::vector<IndexArray> arrays = load_or_build_arrays(
      cache_folder, key,
      [&] {
        auto [dataset_index, dataset_sample_index] = build_blend_indices(normalized, size);
        std::vector<IndexArray> list;
        list.push_back(std::move(dataset_index));
        list.push_back(std::move(dataset_sample_index));
        return list;
      },
      log);
  dataset_index_ = std::move(arrays[0]);
  dataset_sample_index_ = std::move(arrays[1]);
  MEGALITH_CHECK(dataset_index_.rows() == size && dataset_sample_index_.rows() == size, "blend of {} samples", size);
}

void BlendedDataset::read(int64_t index, std::span<int64_t> out) const {
  MEGALITH_CHECK(index >= 0 && index < num_samples(), "sample {} of {}", index, num_samples());
  const auto [dataset, sample] = locate(index);
  MEGALITH_CHECK(dataset >= 0 && dataset < static_cast<int64_t>(datasets_.size()), "data set {} in the blend's index",
                 dataset);
  const SampleSource& source = *datasets_[static_cast<size_t>(dataset)];
  if (sample < 0 || sample >= source.num_samples()) {
    throw UserError(
        fmt::format("the blend takes sample {} of {}, which has {}", sample, source.name(), source.num_samples()),
        "raise --mid_level_dataset_surplus (for example to 0.02)");
  }
  source.read(sample, out);
}

std::string BlendedDataset::name() const {
  std::vector<std::string> names;
  for (const auto& dataset : datasets_) names.push_back(dataset->name());
  return "blend of " + join(names, ", ");
}

}  // namespace megalith
