// See input_spec.h.
#include "models/input_spec.h"

namespace megalith {

std::vector<int64_t> input_shape(const InputSpec& spec, const ModelConfig& config, const ForwardContext& context) {
  std::vector<int64_t> shape;
  for (const InputDim& dim : spec.shape) {
    if (const auto* size = std::get_if<InputSize>(&dim)) {
      const std::array<int64_t, 3> sizes = {context.b, context.s, context.encoder_s};
      shape.push_back(sizes.at(static_cast<size_t>(*size)));
    } else if (const auto* fixed = std::get_if<int64_t>(&dim)) {
      shape.push_back(*fixed);
    } else if (const auto* option = std::get_if<int64_t ModelConfig::*>(&dim)) {
      shape.push_back(config.**option);
    }
  }
  return shape;
}

}  // namespace megalith
