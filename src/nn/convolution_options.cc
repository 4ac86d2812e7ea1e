#include "nn/convolution_options.h"

#include <algorithm>

#include "nn/option_rules.h"

namespace megalith {

namespace {

// A kernel as long as a sequence would be no short convolution.
constexpr int64_t kMostKernel = 256;

}  // namespace

void ConvolutionOptions::visit_convolutions(OptionVisitor& v) {
  v.group("Model", kOfModel.of(kStacks - kEncoders - kClassifiers));
  v.field("layer_types", layer_types,
          "One word a layer: full_attention, or conv for a gated short convolution instead of attention (LFM2). "
          "Default: attention in all.")
      .words({kConvolutionLayer, kAttentionLayer})
      .alias("lfm_layer_types")
      .in_toy(InToy::kMade);
  v.field("conv_kernel_size", conv_kernel_size,
          "With layer_types conv: tokens that a channel is a weighted sum of, itself and those before.")
      .unit("tokens")
      .within(1, kMostKernel)
      .alias("conv_L_cache");
  v.field("conv_bias", conv_bias, "With layer_types conv: biases in the convolution and in both of its projections.");
}

int64_t ConvolutionOptions::num_convolutions() const {
  return std::count(layer_types.begin(), layer_types.end(), kConvolutionLayer);
}

bool ConvolutionOptions::has_convolution_at(int64_t layer) const {
  return layer >= 0 && layer < std::ssize(layer_types) && layer_types[static_cast<size_t>(layer)] == kConvolutionLayer;
}

void check_convolutions(const ConvolutionOptions& options, int64_t num_layers, std::vector<UserError>& errors) {
  if (options.layer_types.empty() || std::ssize(options.layer_types) == num_layers) return;
  errors.emplace_back(
      fmt::format("layer_types has {} entries, and num_layers is {}", options.layer_types.size(), num_layers),
      "give one word a layer, conv or full_attention");
}

}  // namespace megalith
