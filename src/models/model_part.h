// One chunk's content: a range of the model's units, and parameters shared with other chunks.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/unit.h"

namespace megalith {

class Parameter;

struct ModelPart {
  std::vector<Unit> units;  // of the whole model
  UnitRange range;
  int64_t layers_per_block = 1;  // consecutive layers in one Block; the last may have fewer
  // Parameters its units use from another chunk of this rank, by canonical name. The chunk copies any that are neither
  // its own nor found here.
  std::map<std::string, Parameter*> found;
  // Ranks, ascending, that hold copies of a parameter, by canonical name, where several pipeline ranks do.
  std::map<std::string, std::vector<int>> copied;

  std::vector<int> holders(const std::string& parameter) const {
    const auto entry = copied.find(parameter);
    return entry == copied.end() ? std::vector<int>() : entry->second;
  }

  static ModelPart whole(std::vector<Unit> units) {
    const auto count = static_cast<int64_t>(units.size());
    return {.units = std::move(units), .range = {0, count}};
  }

  std::span<const Unit> own_units() const { return units_in(units, range); }
  bool is_last() const { return range.end() == static_cast<int64_t>(units.size()); }
  Parameter* find(const std::string& parameter) const {
    const auto entry = found.find(parameter);
    return entry == found.end() ? nullptr : entry->second;
  }
};

}  // namespace megalith
