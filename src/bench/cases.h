// Cases that several topics of `megalith bench` measure.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/measure.h"

namespace megalith {

struct AttentionShape {
  int64_t b, s, n, g, d;  // samples, tokens of one, query heads, KV heads, channels of a head
  bool is_causal = true;
};

// Forward and backward, fused and reference; with_sdpa: also PyTorch's scaled_dot_product_attention ("sdpa") with
// grouped heads, its backward through autograd. Operations are counted for the pairs of query and key that the mask
// lets through: two products forward, five backward. A case's name is its mask. tensors outlives them.
std::vector<BenchCase> attention_cases(const AttentionShape& shape, const BenchTensors& tensors, bool with_sdpa);

struct OperatorShape {
  int64_t b, s, h, f, v;  // samples, tokens of one, hidden, ffn, vocabulary
  int64_t n, g, d;        // query heads, KV heads, channels of a head
};

// Every operator of src/ops at the sizes of a model. tensors outlives the cases.
std::vector<BenchCase> operator_cases(const OperatorShape& shape, const BenchTensors& tensors);

}  // namespace megalith
