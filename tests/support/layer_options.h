// For tests of layers: options whose layers have no biases, no dropout, gated SiLU and RMSNorm, as Llama's have.
#pragma once

#include "nn/layer_options.h"

namespace megalith::test {

inline LayerOptions plain_layer_options(int64_t hidden_size) {
  LayerOptions options;
  options.hidden_size = hidden_size;
  options.swiglu = true;
  options.normalization = Normalization::kRmsNorm;
  options.add_bias_linear = false;
  options.attention_dropout = options.hidden_dropout = 0;
  return options;
}

}  // namespace megalith::test
