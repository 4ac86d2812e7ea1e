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

// numpy.sum's order of additions, which decides a weight's last bit: eight running sums, halves above 128 values.
double numpy_sum(const double* values, size_t count) {
  if (count < 8) return std::accumulate(values, values + count, 0.0);
  if (count > 128) {
    const size_t half = count / 2 - count / 2 % 8;
    return numpy_sum(values, half) + numpy_sum(values + half, count - half);
  }
  double r[8];
  std::copy(values, values + 8, r);
  size_t i = 8;
  for (; i + 8 <= count; i += 8) {
    for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

// The greedy choice; exhausted data sets are skipped.
std::pair<IndexArray, IndexArray> blend_indices(const std::vector<double>& weights, const std::vector<int64_t>& sizes,
                                                int64_t count) {
  MEGALITH_CHECK(weights.size() < INT16_MAX, "{} data sets in one blend", weights.size());
  std::vector<int16_t> dataset_index(static_cast<size_t>(count));
  std::vector<int64_t> dataset_sample_index(static_cast<size_t>(count)), counts(weights.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    const auto position = static_cast<double>(std::max<int64_t>(i, 1));
    size_t best = 0;
    double best_error = -INFINITY;
    for (size_t k = 0; k < weights.size(); ++k) {
      const double error = weights[k] * position - static_cast<double>(counts[k]);
      if (counts[k] < sizes[k] && error > best_error) {
        best_error = error;
        best = k;
      }
    }
    dataset_index[static_cast<size_t>(i)] = static_cast<int16_t>(best);
    dataset_sample_index[static_cast<size_t>(i)] = counts[best]++;
  }
  return {IndexArray::of(std::move(dataset_index)), IndexArray::of(std::move(dataset_sample_index))};
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
                      fmt::format("write --{} 0.7 first_prefix 0.3 second_prefix, or only prefixes", option));
    }
    blend.weights.push_back(*weight);
    blend.prefixes.push_back(items[i + 1]);
  }
  return blend;
}

std::vector<double> normalize_weights(const std::vector<double>& weights) {
  const double sum = numpy_sum(weights.data(), weights.size());
  std::vector<double> normalized;
  for (const double weight : weights) normalized.push_back(weight / sum);
  return normalized;
}

std::pair<IndexArray, IndexArray> build_blend_indices(const std::vector<double>& weights, int64_t size) {
  return blend_indices(weights, std::vector<int64_t>(weights.size(), INT64_MAX), size);
}

std::pair<IndexArray, IndexArray> build_exhaustive_blend_indices(const std::vector<int64_t>& sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return blend_indices(weights, sizes, total);
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets, const std::vector<double>& weights,
                               std::optional<int64_t> size, Split split,
                               const std::optional<std::filesystem::path>& cache_folder, Logger& log)
    : datasets_(std::move(datasets)) {
  MEGALITH_CHECK(datasets_.size() == weights.size() && !datasets_.empty(), "{} weights for {} data sets",
                 weights.size(), datasets_.size());
  std::vector<int64_t> sizes;
  for (const auto& dataset : datasets_) sizes.push_back(dataset->num_samples());
  const std::vector<double> normalized = normalize_weights(weights);
  const int64_t num_samples = size.value_or(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  OrderedJson description;
  description["class"] = "BlendedDataset";
  bool is_megatrons = true;
  for (const auto& dataset : datasets_) {
    const std::string identity = dataset->identity();
    is_megatrons = is_megatrons && !identity.empty();
    description["datasets"].push_back(identity.empty() ? OrderedJson(dataset->name()) : OrderedJson::parse(identity));
  }
  description["split"] = split_name(split);
  if (size) {
    description["weights"] = normalized;
    description["size"] = *size;
  } else {
    description["weights"] = sizes;
    description["size"] = nullptr;
  }
  const IndexCacheKey key{"BlendedDataset",
                          std::string(split_name(split)),
                          description.dump(4),
                          {"dataset_index", "dataset_sample_index"},
                          is_megatrons ? description.dump() : "",
                          [&](const std::vector<IndexArray>& arrays) {
                            return arrays[0].columns() == 1 && arrays[1].columns() == 1 &&
                                   arrays[0].rows() == num_samples && arrays[1].rows() == num_samples;
                          }};
  std::vector<IndexArray> arrays = load_or_build_arrays(
      cache_folder, key,
      [&] {
        auto [dataset_index, dataset_sample_index] =
            size ? build_blend_indices(normalized, *size) : build_exhaustive_blend_indices(sizes);
        std::vector<IndexArray> list;
        list.push_back(std::move(dataset_index));
        list.push_back(std::move(dataset_sample_index));
        return list;
      },
      log);
  dataset_index_ = std::move(arrays[0]);
  dataset_sample_index_ = std::move(arrays[1]);
  check_supply();
}

// Samples are taken in order, so each data set's last one shows whether there are enough. It is near the blend's end
// unless the weight is tiny: search from there.
void BlendedDataset::check_supply() const {
  std::vector<bool> is_seen(datasets_.size(), false);
  size_t num_seen = 0;
  for (int64_t i = num_samples() - 1; i >= 0 && num_seen < datasets_.size(); --i) {
    const auto [dataset, sample] = checked_place(i);
    if (is_seen[static_cast<size_t>(dataset)]) continue;
    is_seen[static_cast<size_t>(dataset)] = true;
    ++num_seen;
  }
}

std::pair<int64_t, int64_t> BlendedDataset::checked_place(int64_t index) const {
  const auto [dataset, sample] = locate(index);
  if (dataset < 0 || dataset >= static_cast<int64_t>(datasets_.size()) || sample < 0) {
    throw UserError(fmt::format("the index cache of the {} is damaged (sample {})", name(), index),
                    "delete the files of BlendedDataset in data_cache_path");
  }
  const SampleSource& source = *datasets_[static_cast<size_t>(dataset)];
  if (sample >= source.num_samples()) {
    throw UserError(
        fmt::format("the blend takes sample {} of {}, which has {}", sample, source.name(), source.num_samples()),
        "raise --mid_level_dataset_surplus (for example to 0.02)");
  }
  return {dataset, sample};
}

std::optional<DataSize> BlendedDataset::size() const {
  DataSize sum{.documents = 0, .tokens = 0, .samples = 0};
  for (const auto& dataset : datasets_) {
    const std::optional<DataSize> one = dataset->size();
    if (!one) return std::nullopt;
    sum.documents += one->documents;
    sum.tokens += one->tokens;
    sum.samples = sum.samples && one->samples ? std::optional(*sum.samples + *one->samples) : std::nullopt;
  }
  return sum;
}

void BlendedDataset::read(int64_t index, std::span<int64_t> out) const {
  MEGALITH_CHECK(index >= 0 && index < num_samples(), "sample {} of {}", index, num_samples());
  const auto [dataset, sample] = checked_place(index);
  datasets_[static_cast<size_t>(dataset)]->read(sample, out);
}

std::string BlendedDataset::name() const {
  std::vector<std::string> names;
  for (const auto& dataset : datasets_) names.push_back(dataset->name());
  return "blend of " + join(names, ", ");
}

}  // namespace megalith
