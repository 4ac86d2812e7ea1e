// The rows of a mapping of samples, in an order that does not depend on the seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "data/index_array.h"

namespace megalith {

inline std::vector<std::vector<int64_t>> sorted_rows(const IndexArray& array) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t row = 0; row < array.rows(); ++row) {
    std::vector<int64_t>& values = rows.emplace_back();
    for (int64_t column = 0; column < array.columns(); ++column) values.push_back(array.at(row, column));
  }
  std::ranges::sort(rows);
  return rows;
}

}  // namespace megalith
