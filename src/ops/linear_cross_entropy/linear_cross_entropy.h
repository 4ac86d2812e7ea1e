// The language-model head and its loss in chunks of rows: logits are never held whole.
//
//   logits = x w^T (only columns < valid_vocab take part);  loss[i] = logsumexp(logits[i]) - logits[i, labels[i]]
//   dlogits[i] = row_scale[i] * (softmax(logits[i]) - onehot(labels[i]));   dx = dlogits w;   dw += dlogits^T x
//
// Gradients are computed in forward, so row_scale is each row's whole factor (its weight / the global number of valid
// tokens * the loss scale), and the gradient that reaches the loss must be one. Logits are rounded to x's dtype by the
// product, their gradient once; softmax and loss are wide.
//
// t tokens, h hidden, v vocabulary (rows of w)
// x            (t, h)  floating
// w            (v, h)  dtype of x
// labels       (t)     int64 in [0, valid_vocab); ignored if row_scale is 0
// row_scale    (t)     wide
// losses       (t)     wide, unweighted; 0 where row_scale is 0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

struct LinearCrossEntropyOptions {
  int64_t valid_vocab = -1;  // later columns are padding; -1: none
  int64_t chunk_rows = 1024;
  Kernels kernels = Kernels::kFused;
};

// with_grad  compute dx, and add to `dw` ((v, h) wide; undefined: frozen)
// returns    (losses (t), dx (t, h) or undefined)
std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const at::Tensor& dw,
                                                        const LinearCrossEntropyOptions& options = {});

// Halves for a rank with columns [vocab_start, vocab_start + v); the caller reduces in between. logits (c, v), labels
// (c) global ids.
struct SoftmaxStatistics {
  at::Tensor row_max;       // (c) wide, of local valid columns; -inf if none
  at::Tensor sum_exp;       // (c) wide: sum of exp(logit - row_max)
  at::Tensor target_logit;  // (c) wide, 0 on other ranks
};
SoftmaxStatistics softmax_statistics(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                     int64_t local_valid_vocab, Kernels kernels = Kernels::kFused);

// logits <- row_scale * (exp(logits - lse) - onehot), 0 in padding; lse (c) wide.
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab,
                             Kernels kernels = Kernels::kFused);

struct LinearCrossEntropyTable {
  // valid_vocab is given; dw may be undefined, as dx without with_grad.
  std::tuple<at::Tensor, at::Tensor> (*whole)(const at::Tensor& x, const at::Tensor& w, const at::Tensor& labels,
                                              const at::Tensor& row_scale, bool with_grad, const at::Tensor& dw,
                                              const LinearCrossEntropyOptions& options);
  SoftmaxStatistics (*statistics)(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                  int64_t local_valid_vocab);
  void (*gradient_)(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                    const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab);
};
extern const LinearCrossEntropyTable kLinearCrossEntropyReference;
extern const Operator<LinearCrossEntropyTable> kLinearCrossEntropy;

}  // namespace megalith::ops
