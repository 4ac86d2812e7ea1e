// See causal_lm.h.
#include "tasks/causal_lm.h"

namespace megalith {

std::vector<UserError> CausalLm::check(const ModelConfig& /*model*/, const DataOptions& /*data*/) const {
  return {};
}

}  // namespace megalith
