// What a model's input must hold to before it is embedded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

// UserError for a token outside the vocabulary. Tokens that a GPU holds are not looked at: the host would wait for
// them.
void check_token_ids(const at::Tensor& tokens, int64_t vocab_size);

}  // namespace megalith
