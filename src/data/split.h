// Splits: which elements of a data set are for training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace megalith {

enum class Split { kTrain, kValid, kTest };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};
std::string_view split_name(Split split);  // "train", "valid", "test"
inline constexpr const char* kDefaultSplit = "969, 30, 1";

// Elements [begin, end) of a data set.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// Weights from a text such as "969, 30, 1", any separators, normalised to sum 1; missing ones are 0. UserError for
// none, more than three, or a sum of 0.
std::array<double, 3> parse_split(std::string_view text);

// Ranges of the splits: cumulative weights times the count, rounded half to even as Python does. A split of weight 0
// does not exist; a small weight's may be empty.
std::array<std::optional<ElementRange>, 3> split_ranges(const std::array<double, 3>& weights, int64_t num_elements);

}  // namespace megalith
