// See token_ids.h.
#include "models/token_ids.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace megalith {

void check_token_ids(const at::Tensor& tokens, int64_t vocab_size) {
  if (!tokens.is_cpu() || tokens.numel() == 0) return;
  const auto [smallest, largest] = at::aminmax(tokens);
  if (smallest.item<int64_t>() >= 0 && largest.item<int64_t>() < vocab_size) return;
  const int64_t bad = smallest.item<int64_t>() < 0 ? smallest.item<int64_t>() : largest.item<int64_t>();
  throw UserError(fmt::format("token id {} in the data, but vocab_size is {}", bad, vocab_size),
                  "prepare the data with the tokenizer of this model, or set vocab_size to its vocabulary");
}

}  // namespace megalith
