// Scaled dot-product attention with grouped heads, under any mask.
//
//   scores = scale * q k^T + bias;   p = softmax over allowed keys (float32);   out = dropout(p) v
//   or     = softcap * tanh(scale * q k^T / softcap)
//   lse    = log sum over allowed keys of exp(scores)
//
// A query without keys gives zeros, lse = -inf and no gradient. Query head j reads KV head j / (n / g). Sources:
// arXiv:2307.08691 (fused), arXiv:2408.00118 (softcap).
//
// q    (b, sq, n, d)   floating; any strides with d contiguous
// k    (b, sk, g, d)   g divides n
// v    (b, sk, g, dv)
// out  (b, sq, n, dv)  contiguous, dtype of q
// lse  (b, n, sq)      wide
//
// On the CPU the number of threads changes no result, memory grows with sq + sk, and positions must be within ±2^30. On
// a GPU a library computes supported masks (plan.h) in as much memory; the reference keeps score matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <tuple>

#include "ops/attention/libraries.h"
#include "ops/attention/mask_runs.h"
#include "ops/operator.h"

namespace megalith::ops {

// All set conditions must hold.
struct AttentionMask {
  bool is_causal = true;       // key position <= query position
  int64_t window = 0;          // > 0: query position - key position < window (both sides if not causal)
  at::Tensor query_positions;  // (sq) int64; default sk - sq + row, for a KV cache
  at::Tensor key_positions;    // (sk) int64; default 0 … sk - 1
  at::Tensor query_documents;  // (b, sq) int32: keys of other documents are hidden; set both or none
  at::Tensor key_documents;    // (b, sk) int32
  at::Tensor key_lengths;      // (b) int64, without padding
  at::Tensor bias;             // (1 or b, 1 or n, sq, sk), dtype of q or fp32
  double softcap = 0;          // > 0: without bias
  // For the host; null: unknown. Only GPU libraries read it.
  std::shared_ptr<const MaskRuns> runs = nullptr;
};

// InternalError if runs contradict tensors in host memory.
void check_runs(const AttentionMask& mask, int64_t sq, int64_t sk);

// Dropout of probabilities, whatever the layout: word (key position mod 4) of the Philox block with counter (low =
// (head_start + head) * 2^40 + key position / 4, high = row id); see dropout.h.
struct AttentionDropout {
  double p = 0;
  uint64_t key = 0;
  at::Tensor row_ids;      // (b, sq) int64: global token numbers
  int64_t head_start = 0;  // the first local head
};

// returns (out, lse)
std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     double scale, const AttentionMask& mask,
                                                     const AttentionDropout& dropout = {},
                                                     const AttentionKernels& kernels = {});

struct AttentionGradients {
  at::Tensor dq, dk, dv;  // like q, k, v; contiguous
  at::Tensor dbias;       // fp32, like bias; undefined unless requested
};

// Given the whole softmax's out and lse, a block of keys can be differentiated by itself, as in ring attention.
AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, double scale,
                                      const AttentionMask& mask, const AttentionDropout& dropout = {},
                                      bool with_dbias = false, const AttentionKernels& kernels = {});

struct AttentionTable {
  std::tuple<at::Tensor, at::Tensor> (*forward)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                double scale, const AttentionMask& mask,
                                                const AttentionDropout& dropout, const AttentionLibraries& libraries);
  AttentionGradients (*backward)(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& out, const at::Tensor& lse, double scale, const AttentionMask& mask,
                                 const AttentionDropout& dropout, bool with_dbias, const AttentionLibraries& libraries);
};
extern const AttentionTable kAttentionReference, kAttentionCpu, kAttentionMeta, kAttentionGpuAten;
extern const Operator<AttentionTable> kAttention;

}  // namespace megalith::ops
