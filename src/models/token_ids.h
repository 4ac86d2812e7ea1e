// Checks a model's input before it is embedded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

// UserError for a token outside the vocabulary. Skips tokens on a GPU, where the host would wait.
void check_token_ids(const at::Tensor& tokens, int64_t vocab_size);

}  // namespace megalith
