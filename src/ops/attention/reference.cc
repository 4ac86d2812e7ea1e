// The definition: whole score matrices, wide.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "ops/arguments.h"
#include "ops/attention/attention.h"
#include "ops/philox_words.h"

namespace megalith::ops {
namespace reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::ScalarType wide_type(const at::Tensor& x) { return wide_dtype(x.scalar_type()); }

// (b, s, heads, d) -> (b, heads, s, d), wide
at::Tensor heads_first(const at::Tensor& x) { return x.to(wide_type(x)).transpose(1, 2); }

at::Tensor key_positions_of(const AttentionMask& mask, int64_t sk, const at::Device& device) {
  if (mask.key_positions.defined()) return mask.key_positions;
  return at::arange(sk, at::TensorOptions(at::kLong).device(device));
}

// x (b, n, sq, a) times y (b, g, a, c) -> (b, n, sq, c), without copying keys.
at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& y) {
  const int64_t b = x.size(0), n = x.size(1), sq = x.size(2), g = y.size(1);
  return at::matmul(x.reshape({b, g, n / g * sq, x.size(3)}), y).view({b, n, sq, y.size(3)});
}

// Sums x^T y over each KV head's queries: x (b, n, sq, a), y (b, n, sq, c) -> (b, g, a, c)
at::Tensor grouped_matmul_transposed(const at::Tensor& x, const at::Tensor& y, int64_t g) {
  const int64_t b = x.size(0), rows = x.size(1) / g * x.size(2);
  return at::matmul(x.reshape({b, g, rows, x.size(3)}).transpose(2, 3), y.reshape({b, g, rows, y.size(3)}));
}

// Without bias: bool, (1 or b, 1, sq, sk).
at::Tensor allowed_pairs(const AttentionMask& mask, int64_t sq, int64_t sk, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor query =
      (mask.query_positions.defined() ? mask.query_positions : at::arange(sk - sq, sk, options)).view({1, 1, sq, 1});
  const at::Tensor key = key_positions_of(mask, sk, device).view({1, 1, 1, sk});
  at::Tensor allowed = at::ones({1, 1, sq, sk}, options.dtype(at::kBool));
  if (mask.is_causal) allowed = allowed & (key <= query);
  if (mask.window > 0) allowed = allowed & (query - key < mask.window);
  if (mask.window > 0 && !mask.is_causal) allowed = allowed & (key - query < mask.window);
  if (mask.query_documents.defined()) {
    allowed = allowed & (mask.query_documents.view({-1, 1, sq, 1}) == mask.key_documents.view({-1, 1, 1, sk}));
  }
  if (mask.key_lengths.defined()) {
    allowed = allowed & (at::arange(sk, options).view({1, 1, 1, sk}) < mask.key_lengths.view({-1, 1, 1, 1}));
  }
  return allowed;
}

// (b, n, sq, sk) wide, -inf where masked
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, double scale, const AttentionMask& mask) {
  at::Tensor scores = grouped_matmul(heads_first(q), heads_first(k).transpose(2, 3)).mul_(scale);
  if (mask.softcap > 0) scores.div_(mask.softcap).tanh_().mul_(mask.softcap);
  if (mask.bias.defined()) scores.add_(mask.bias);
  return scores.masked_fill_(allowed_pairs(mask, q.size(1), k.size(1), q.device()).logical_not(), -kInfinity);
}

// exp(scores - lse); a row without keys (lse = -inf) gives zeros.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse) {
  return at::exp(scores - lse.masked_fill(lse == -kInfinity, 0).unsqueeze(-1));
}

// 0 or 1 / (1 - p): (b, num_heads, sq, sk).
at::Tensor dropout_factors(const AttentionDropout& dropout, const AttentionMask& mask, int64_t num_heads, int64_t sk,
                           at::ScalarType dtype) {
  const at::Tensor row_ids = dropout.row_ids;
  const at::Tensor key = key_positions_of(mask, sk, row_ids.device()).view({1, 1, 1, sk});
  const at::Tensor head =
      at::arange(dropout.head_start, dropout.head_start + num_heads, row_ids.options()).view({1, num_heads, 1, 1});
  const at::Tensor words = philox_words(dropout.key, head.bitwise_left_shift(40) + key.bitwise_right_shift(2),
                                        row_ids.unsqueeze(1).unsqueeze(-1), key.bitwise_and(3));
  return (words >= std::ceil(dropout.p * 0x1p32)).to(dtype).mul_(1 / (1 - dropout.p));
}

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     double scale, const AttentionMask& mask,
                                                     const AttentionDropout& dropout,
                                                     const AttentionLibraries& /*libraries*/) {
  const at::Tensor scores = masked_scores(q, k, scale, mask);
  const at::Tensor lse = at::logsumexp(scores, -1);
  at::Tensor p = probabilities(scores, lse);
  if (dropout.p > 0) p = p * dropout_factors(dropout, mask, q.size(2), k.size(1), p.scalar_type());
  return {grouped_matmul(p, heads_first(v)).transpose(1, 2).to(q.scalar_type()).contiguous(), lse};
}

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, double scale,
                                      const AttentionMask& mask, const AttentionDropout& dropout, bool with_dbias,
                                      const AttentionLibraries& /*libraries*/) {
  const int64_t g = k.size(2);
  const at::Tensor scores = masked_scores(q, k, scale, mask);
  const at::Tensor p = probabilities(scores, lse);
  const at::Tensor dout_wide = heads_first(dout);
  // Sum over keys of p dp, with dropout too.
  const at::Tensor delta = (dout_wide * heads_first(out)).sum(-1, true);
  at::Tensor dp = grouped_matmul(dout_wide, heads_first(v).transpose(2, 3));
  at::Tensor p_dropped = p;
  if (dropout.p > 0) {
    const at::Tensor factors = dropout_factors(dropout, mask, q.size(2), k.size(1), p.scalar_type());
    p_dropped = p * factors;
    dp.mul_(factors);
  }
  at::Tensor ds = p * dp.sub_(delta);
  // d tanh(x) = 1 - tanh(x)^2; masked scores (-inf) must not give NaN.
  if (mask.softcap > 0) ds = ds * (1 - (scores.clamp_min(-mask.softcap) / mask.softcap).square());

  const auto seq_first = [](const at::Tensor& x, const at::Tensor& like) {
    return x.transpose(1, 2).to(like.scalar_type()).contiguous();
  };
  AttentionGradients gradients;
  gradients.dq = seq_first(grouped_matmul(ds, heads_first(k)).mul_(scale), q);
  gradients.dk = seq_first(grouped_matmul_transposed(ds, heads_first(q), g).mul_(scale), k);
  gradients.dv = seq_first(grouped_matmul_transposed(p_dropped, dout_wide, g), v);
  if (with_dbias && mask.bias.defined()) gradients.dbias = at::sum_to(ds, mask.bias.sizes()).contiguous();
  return gradients;
}

}  // namespace
}  // namespace reference

constexpr AttentionTable kAttentionReference{.forward = reference::attention_forward,
                                             .backward = reference::attention_backward};

}  // namespace megalith::ops
