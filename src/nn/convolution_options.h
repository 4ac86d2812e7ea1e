// Short convolutions, where other layers have attention (short_convolution.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct ConvolutionOptions {
  std::vector<std::string> layer_types;  // one a layer, kConvolutionLayer or kAttentionLayer; empty: attention in all
  int64_t conv_kernel_size = 3;          // tokens, with itself, that a channel sees
  bool conv_bias = false;

  void visit_convolutions(OptionVisitor& v);

  int64_t num_convolutions() const;
  // False beyond the list.
  bool has_convolution_at(int64_t layer) const;
};

inline constexpr const char *kConvolutionLayer = "conv", *kAttentionLayer = "full_attention";

void check_convolutions(const ConvolutionOptions& options, int64_t num_layers, std::vector<UserError>& errors);

}  // namespace megalith
