// Splits; see split.h. Source: megatron/core/datasets/blended_megatron_dataset_config.py.
#include "data/split.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace megalith {

std::string_view split_name(Split split) {
  constexpr std::string_view kNames[] = {"train", "valid", "test"};
  return kNames[static_cast<size_t>(split)];
}

std::array<double, 3> parse_split(std::string_view text) {
  const auto fail = [&](std::string_view reason) {
    throw UserError(fmt::format("split \"{}\" {}", text, reason), "give up to three weights, such as --split 969,30,1");
  };
  const auto is_number_part = [](char c) { return c == '.' || (c >= '0' && c <= '9'); };
  std::vector<double> weights;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && is_number_part(text[end])) ++end;
    if (end == i) {
      ++i;
      continue;
    }
    double weight = 0;
    const auto [stop, error] = std::from_chars(text.data() + i, text.data() + end, weight);
    if (error != std::errc{} || stop != text.data() + end) fail("holds something that is not a number");
    weights.push_back(weight);
    i = end;
  }
  if (weights.empty()) fail("holds no number");
  if (weights.size() > 3) fail(fmt::format("holds {} numbers", weights.size()));
  weights.resize(3, 0.0);
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0) || !std::isfinite(sum)) fail("has no positive sum");
  return {weights[0] / sum, weights[1] / sum, weights[2] / sum};
}

std::array<std::optional<ElementRange>, 3> split_ranges(const std::array<double, 3>& weights, int64_t num_elements) {
  std::array<std::optional<ElementRange>, 3> ranges;
  const auto count = static_cast<double>(num_elements);
  double before = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double after = before + weights[i];
    // nearbyint rounds half to even in the default mode.
    if (weights[i] > 0) {
      ranges[i] = ElementRange{static_cast<int64_t>(std::nearbyint(before * count)),
                               static_cast<int64_t>(std::nearbyint(after * count))};
    }
    before = after;
  }
  return ranges;
}

}  // namespace megalith
