// Chunked attention (Llama 4): documents cut into pieces of `size` tokens, each of which attends only to itself.
#pragma once

#include "nn/forward.h"

namespace megalith {

// The context's mask, its documents (or whole sequences) cut into chunks; unchanged where they fit one chunk.
// device  of the mask's tensors
ops::AttentionMask cut_into_chunks(const ForwardContext& context, int64_t size, at::Device device);

}  // namespace megalith
