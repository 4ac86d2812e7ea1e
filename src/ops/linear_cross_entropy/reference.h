// The two halves of cross entropy over a slice of the vocabulary, and the chunked head that joins them, composed from
// ATen. Arguments as in ops/linear_cross_entropy.
#pragma once

#include <tuple>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace megalith::ops::reference {

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const at::Tensor& dw, int64_t valid_vocab,
                                                        int64_t chunk_rows);

SoftmaxStatistics softmax_statistics(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                     int64_t local_valid_vocab);

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab);

}  // namespace megalith::ops::reference
