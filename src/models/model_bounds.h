// Bounds on a model's size. Sizes near 2^63 from a configuration would overflow in products or exhaust memory; within
// these bounds, far above every published model, size arithmetic is exact in 64 bits. Options declare them as ranges,
// config.json rows are held to them, and check_model_config() checks them first.
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
inline constexpr int64_t kMostParameters = int64_t{1'000'000'000'000'000};  // 10^15; published: up to 2 * 10^14

// Parameters except biases and norm weights. If moe_layer_freq cannot be parsed every layer counts as one with experts.
// Exact to 2^53, finite for any sizes.
double count_matrix_elements(const ModelConfig& config);

// Errors for sizes and products out of bounds; 0 means not given.
std::vector<UserError> check_model_bounds(const ModelConfig& config);

}  // namespace megalith
