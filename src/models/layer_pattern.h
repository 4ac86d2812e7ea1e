// Which layers have experts, and which have a window: the expressions of moe_layer_freq, window_attn_skip_freq
// and no_rope_freq.
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

// 1 for a layer with a window, 0 for one that sees everything: N leaves the window out of every N-th layer, the first
// of them being the N-th; a list has one entry a layer; an empty text is a window in all. Errors as above.
std::vector<int64_t> parse_window_attn_skip_freq(const std::string& text, int64_t num_layers);
// The list, or nothing where all layers have a window.
std::string window_attn_skip_freq_text(const std::vector<int64_t>& layers);

// 1 for a layer that does not rotate, 0 for one that does: N is every N-th, the first of them being the N-th; an empty
// text is none. Errors as above.
std::vector<int64_t> parse_no_rope_freq(const std::string& text, int64_t num_layers);
// The list, or nothing where all layers rotate.
std::string no_rope_freq_text(const std::vector<int64_t>& layers);

}  // namespace megalith
