// Attention in chunks (Llama 4): documents cut into pieces of so many tokens, each of which sees only itself.
#pragma once

#include "nn/forward.h"

namespace megalith {

// The context's mask with its documents, or all of a sequence, cut into chunks of `size` tokens. What is no longer than
// one chunk stays as it is.
// device  of the mask's tensors
ops::AttentionMask cut_into_chunks(const ForwardContext& context, int64_t size, at::Device device);

}  // namespace megalith
