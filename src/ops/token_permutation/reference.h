// The tokens' way to their experts and back, composed from ATen; see ops/token_permutation. permute_tokens_forward
// and combine_tokens_forward are differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace megalith::ops {

// counts, offsets, pairs, source, slots. There are as many rows as pairs: those behind the last expert's are padding,
// -1 in pairs and source.
using SortedPairs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

namespace reference {

SortedPairs sort_by_expert(const at::Tensor& experts, const std::optional<at::Tensor>& keep, int64_t num_experts);
at::Tensor permute_tokens_forward(const at::Tensor& x, const at::Tensor& source);
at::Tensor combine_tokens_forward(const at::Tensor& y, const at::Tensor& slots,
                                  const std::optional<at::Tensor>& weights);
std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights);

}  // namespace reference
}  // namespace megalith::ops
