// See states_units.h.
#include "models/states_units.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "models/encoder_decoder.h"
#include "models/families.h"
#include "models/transformer.h"

namespace megalith {

std::vector<Unit> states_units(const ModelConfig& config, bool has_pooler) {
  MEGALITH_CHECK(!has_pooler || config.stack_type() == ModelType::kBert, "only a BERT has a pooler");
  std::vector<Unit> units = model_units(config);
  if (!config.has_encoder()) {
    std::erase_if(units, [](const Unit& unit) { return unit.kind == kPredictionUnit || unit.kind == kHeadUnit; });
    units.push_back({.kind = has_pooler ? kPooledStatesUnit : kStatesUnit,
                     .name = kStatesUnit,
                     .letter = UnitLetter::kHead,
                     .reads = {"hidden"},
                     .gives = {kStates}});
    if (has_pooler) units.back().gives.emplace_back(kPooled);
    return units;
  }
  const auto norm = std::ranges::find(units, kEncoderNormUnit, &Unit::kind);
  MEGALITH_CHECK(norm != units.end(), "an encoder without its norm");
  units.erase(norm + 1, units.end());
  return units;
}

}  // namespace megalith
