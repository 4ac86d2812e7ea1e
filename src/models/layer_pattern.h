// Which layers have experts: the expression of moe_layer_freq.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

// 1 for a layer with experts, 0 for one without; one entry a layer. UserError when the text is no such expression or
// its length differs from num_layers.
std::vector<int64_t> parse_moe_layer_freq(const std::string& text, int64_t num_layers);
// The text for layers of which the first num_dense have no experts.
std::string moe_layer_freq_text(int64_t num_dense, int64_t num_layers);
// The same text for all that mean the same layers. Errors as parse_moe_layer_freq().
std::string normalised_moe_layer_freq(const std::string& text, int64_t num_layers);

}  // namespace megalith
