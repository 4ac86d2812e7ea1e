// Cases shared by topics of `megalith bench`.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/measure.h"
#include "train/config.h"

namespace megalith {

struct AttentionShape {
  int64_t b, s, n, g, d;  // samples, tokens each, query heads, KV heads, channels per head
  bool is_causal = true;
};

// Forward and backward, fused and reference; with_sdpa: also PyTorch's scaled_dot_product_attention ("sdpa") with
// grouped heads, its backward through autograd. Counts operations for the pairs that the mask allows: two products
// forward, five backward. Cases are named after their mask. tensors must outlive them.
std::vector<BenchCase> attention_cases(const AttentionShape& shape, const BenchTensors& tensors, bool with_sdpa);

struct OperatorShape {
  int64_t b, s, h, f, v;  // samples, tokens each, hidden, ffn, vocabulary
  int64_t n, g, d;        // query heads, KV heads, channels per head
};

// The configuration's, at its micro-batch and sequence.
OperatorShape operator_shape(const Resolved& run);

// Every operator of src/ops at a model's sizes. tensors must outlive the cases.
std::vector<BenchCase> operator_cases(const OperatorShape& shape, const BenchTensors& tensors);

}  // namespace megalith
