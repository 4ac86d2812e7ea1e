// The part of a model that one chunk holds: a range of its units, and what it shares with other chunks.
#pragma once

#include <map>
#include <set>
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
  std::set<std::string> copied;  // canonical names of the parameters of which several pipeline ranks hold copies

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
