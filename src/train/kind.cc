// See kind.h.
#include "train/kind.h"

#include <algorithm>

namespace megalith {

const Kind& kind_of(Kinds kinds, ModelType type) {
  const auto found = std::ranges::find(kinds, type, &Kind::type);
  MEGALITH_CHECK(found != kinds.end(), "no kind for model_type {}", kModelTypeWords[static_cast<size_t>(type)]);
  return **found;
}

}  // namespace megalith
