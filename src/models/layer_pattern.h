// Expressions of moe_layer_freq, window_attn_skip_freq and no_rope_freq: which layers have experts, a window, no
// rotation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

// By layer, 1 with experts, 0 without. UserError for a malformed text or a length other than num_layers.
std::vector<int64_t> parse_moe_layer_freq(const std::string& text, int64_t num_layers);
// The text for num_dense dense layers, then experts.
std::string moe_layer_freq_text(int64_t num_dense, int64_t num_layers);
// Canonical text; errors as parse_moe_layer_freq().
std::string normalised_moe_layer_freq(const std::string& text, int64_t num_layers);

// By layer, 1 with a window, 0 global. N: every N-th layer is global, from the N-th; a list has one entry a layer;
// empty: a window in all. Errors as above.
std::vector<int64_t> parse_window_attn_skip_freq(const std::string& text, int64_t num_layers);
// The list; empty if all layers have a window.
std::string window_attn_skip_freq_text(const std::vector<int64_t>& layers);

// By layer, 1 unrotated, 0 rotated. N: every N-th, from the N-th; empty: none. Errors as above.
std::vector<int64_t> parse_no_rope_freq(const std::string& text, int64_t num_layers);
// The list; empty if all layers rotate.
std::string no_rope_freq_text(const std::vector<int64_t>& layers);

}  // namespace megalith
