// A tensor that a microbatch gives a model, declared by the unit that reads it.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "models/model_config.h"
#include "nn/forward.h"

namespace megalith {

// b, s and encoder_s of a ForwardContext; under context parallelism s is this rank's (data/batch.h).
enum class InputSize : size_t { kRows, kTokens, kEncoderTokens };
using InputDim = std::variant<std::monostate, InputSize, int64_t, int64_t ModelConfig::*>;

struct InputSpec {
  const char* name;
  std::array<InputDim, 3> shape;
  at::ScalarType dtype = at::kLong;
  bool is_split = false;  // sequence parallelism splits dim 1 over ranks
};

std::vector<int64_t> input_shape(const InputSpec& spec, const ModelConfig& config, const ForwardContext& context);

}  // namespace megalith
