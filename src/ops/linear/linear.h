// Matrix products of a linear layer, y = x w^T + bias, its three gradients, and the embedding's.
//
// t tokens, h in, o out; x (t, h), w (o, h), bias (o), y and dy (t, o): one floating dtype; x and dy may be strided in
// t. Weight gradients accumulate wide.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {},
                          Kernels kernels = Kernels::kFused);

// dx = dy w  (t, h)
at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w, Kernels kernels = Kernels::kFused);

// dw (o, h) wide, contiguous rows: (+)= dy^T x
void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate = true,
                   Kernels kernels = Kernels::kFused);

// db (o) wide += sum over t of dy
void bias_grad_(const at::Tensor& db, const at::Tensor& dy, Kernels kernels = Kernels::kFused);

// `table` (v, h), ids (t) int64 -> (t, h). Ids outside [start, start + v) give zeros, for slices of the vocabulary.
at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start = 0,
                             Kernels kernels = Kernels::kFused);

// dw (v, h) wide: dw[ids[i] - start] += dy[i] (h) in token order, reproducible.
void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start = 0,
                      Kernels kernels = Kernels::kFused);

struct LinearTable {
  at::Tensor (*forward)(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);
  at::Tensor (*dgrad)(const at::Tensor& dy, const at::Tensor& w);
  void (*wgrad_)(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);
  void (*bias_grad_)(const at::Tensor& db, const at::Tensor& dy);
  at::Tensor (*embedding_forward)(const at::Tensor& ids, const at::Tensor& table, int64_t start);
  void (*embedding_wgrad_)(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start);
};
extern const LinearTable kLinearReference, kLinearGpuAten;
extern const Operator<LinearTable> kLinear;

}  // namespace megalith::ops
