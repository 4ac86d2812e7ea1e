// Decoding: the next token from logits, greedy or random after temperature, top-k and top-p.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/option.h"

namespace megalith {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // 0: no limit
  double top_p = 1.0;
  int64_t sampling_seed = 1234;

  void visit(OptionVisitor& v);
};

// Draws one id per row, depending only on (seed, row, step).
//
// logits   (b, v)
// step     of the token being chosen, from 0
// returns  (b) int64. Temperature divides the logits first; top-k keeps the k largest (ties with the k-th included);
//          top-p then keeps the smallest set of most likely tokens whose probabilities sum to at least p.
at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, int64_t step);

}  // namespace megalith
