// softmax(scale q k^T) v of this rank's heads, over its own sequence, one shared by cp ranks (context_attention.h), or
// a KV cache; e channels per value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nn/context_attention.h"
#include "nn/forward.h"
#include "nn/kept.h"
#include "nn/module.h"
#include "ops/attention/attention.h"

namespace megalith {

// This rank's. UserError if tp does not divide `heads`, the value of `option`.
int64_t heads_of_rank(int64_t heads, const LayerContext& context, std::string_view option);

class AttentionCore {
 public:
  // After exchange().
  struct Tensors {
    at::Tensor q, k, v;   // (b, s, n, d), (b, s, g, d), (b, s, g, e)
    at::Tensor out, lse;  // (b, s, n, e), (b, n, s) wide; undefined before compute()
  };
  struct KeptTensors {
    Kept q, k, v, out, lse;
    Tensors take() { return {q.take(), k.take(), v.take(), out.take(), lse.take()}; }
  };
  struct Call {
    bool is_shared;  // the sequence, by cp ranks
    ops::AttentionMask mask;
    ops::AttentionDropout dropout;
    at::Tensor sinks = {};    // (n) wide; undefined: none
    bool with_dbias = false;  // backward() differentiates mask.bias
  };

  // name: also keys dropout. num_heads, num_kv_heads: on this rank. dropout: of probabilities, in training. UserError
  // if the context-parallel exchange does not divide the heads.
  AttentionCore(const LayerContext& context, const std::string& name, int64_t layer, double scale, double dropout,
                int64_t num_heads, int64_t num_kv_heads);

  Call make_call(const ForwardContext& forward) const;

  // No-op unless ranks share the sequence.
  void exchange(Tensors& core, const Call& call) const;
  void compute(Tensors& core, const Call& call) const;
  // is_recomputed: out and lse.
  KeptTensors keep(const Tensors& core, const Call& call, bool is_recomputed) const;
  KeptTensors keep(std::vector<Kept> qkv, const Tensors& core, const Call& call, bool is_recomputed) const;
  // Gradients of exchange()'s arguments; in *dsinks the sinks'.
  ops::AttentionGradients backward(const at::Tensor& dout, const Tensors& core, const Call& call,
                                   at::Tensor* dsinks = nullptr) const;

  // Appends k and v to the layer's slot; out (b, s, n, e).
  at::Tensor attend_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const ForwardContext& forward, const at::Tensor& sinks = {}) const;

  int cp_size() const { return context_.cp_size(); }

 private:
  int64_t layer_;
  double scale_, dropout_;
  uint64_t dropout_key_;
  int64_t head_start_;
  int64_t num_kv_heads_;
  ops::AttentionKernels kernels_;
  ContextAttention context_;
};

}  // namespace megalith
