#include "nn/unit.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "nn/forward.h"

namespace megalith {

std::span<const Unit> units_in(std::span<const Unit> units, const UnitRange& range) {
  MEGALITH_CHECK(range.first >= 0 && range.count >= 0 && range.end() <= std::ssize(units), "units {} to {} of {}",
                 range.first, range.end(), units.size());
  return units.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count));
}

int64_t count_units(std::span<const Unit> units, UnitLetter letter) {
  return std::count_if(units.begin(), units.end(), [&](const Unit& unit) { return unit.letter == letter; });
}

void check_units(std::span<const Unit> units) {
  std::set<std::string> names, given;
  for (const Unit& unit : units) {
    for (const std::string& tensor : unit.reads) {
      MEGALITH_CHECK(given.contains(tensor), "unit {} reads {}, which no unit before it gives", unit.name, tensor);
    }
    for (const UsedParameter& used : unit.uses) {
      MEGALITH_CHECK(names.contains(used.unit), "unit {} uses {} of {}, which is no unit before it", unit.name,
                     used.parameter, used.unit);
    }
    MEGALITH_CHECK(names.insert(unit.name).second, "two units have the name {}", unit.name);
    given.insert(unit.gives.begin(), unit.gives.end());
  }
}

std::vector<std::string> boundary_before(std::span<const Unit> units, int64_t begin) {
  std::vector<std::string> names;
  std::set<std::string> known;  // listed, or given anew after the border
  for (const Unit& unit : units_in(units, {begin, std::ssize(units) - begin})) {
    // Nothing is given before the first unit.
    for (const std::string& tensor : unit.reads) {
      if (begin > 0 && known.insert(tensor).second) names.push_back(tensor);
    }
    known.insert(unit.gives.begin(), unit.gives.end());
  }
  return names;
}

Bundle outgoing_bundle(std::span<const Unit> units, const UnitRange& chunk, const Bundle& given,
                       const Bundle& received) {
  Bundle outgoing;
  for (const std::string& name : boundary_before(units, chunk.end())) {
    const at::Tensor* own = given.find(name);
    outgoing.set(name, own != nullptr ? *own : received.at(name));
  }
  return outgoing;
}

}  // namespace megalith
