// The part of a model that one chunk holds: a range of its units, and what it shares with other chunks.
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
  std::vector<Unit> units;       // of the whole model
  UnitRange range;               // the chunk's among them
  int64_t layers_per_block = 1;  // consecutive layers that are one Block; the last block may have fewer
  // Parameters that the chunk's units use and another chunk of this rank has, by canonical name. The chunk holds a copy
  // of what it uses and neither has nor finds here.
  std::map<std::string, Parameter*> found;
  // The parameters of which several pipeline ranks hold copies, by canonical name, and these ranks, ascending.
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
