// How large a model may be. A configuration comes from outside, and sizes near 2^63 would wrap around in a product or
// ask for more memory than any machine has before anybody looks at them. So each size has a bound, a few products have
// one, and below them all arithmetic on sizes is exact in 64 bits. The bounds are far from every published model, and
// far from what overflows. The options declare them as their ranges, rows of config.json are held to them as they are
// read, and check_model_config() begins with them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "models/model_config.h"
#include "nn/option_rules.h"

namespace megalith {

inline constexpr int64_t kMostLayers = 4096;            // GPT-3 has 96, DeepNet 1000
inline constexpr int64_t kMostPredictionModules = 128;  // DeepSeek-V3 has 1
inline constexpr int64_t kMostVocabulary = 1 << 28;     // the largest published ones have some 10^6
inline constexpr int64_t kMostLayerParts = 1 << 18;     // layers times heads, layers times experts; 23424 (Kimi K2)
inline constexpr int64_t kMostParameters = int64_t{1'000'000'000'000'000};  // 10^15; published are up to 2 * 10^14

// Elements of all matrices: the parameters but for biases and the weights of norms. Where moe_layer_freq cannot be read
// every layer counts as one with experts. Exact up to 2^53, and finite whatever the sizes.
double count_matrix_elements(const ModelConfig& config);

// Sizes and products that are beyond their bounds, or below what has a meaning; 0 stands for a size that is not given.
std::vector<UserError> check_model_bounds(const ModelConfig& config);

}  // namespace megalith
