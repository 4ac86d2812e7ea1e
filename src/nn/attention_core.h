// What lies between the projections of an attention layer: softmax(scale q k^T) v of this rank's heads, over the
// sequence, over one that context-parallel ranks share (nn/context_attention.h), or over a KV cache.
//
// b sequences, s tokens of this rank, n query heads and g KV heads of this rank, d channels of a head, e of a value
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

// This rank's. UserError when tp does not divide the heads that `option` gives.
int64_t heads_of_rank(int64_t heads, const LayerContext& context, std::string_view option);

class AttentionCore {
 public:
  // What forward leaves for backward. For a shared sequence, after exchange(): what this rank's heads attend to.
  struct Tensors {
    at::Tensor q, k, v;   // (b, s, n, d), (b, s, g, d), (b, s, g, e)
    at::Tensor out, lse;  // (b, s, n, e), (b, n, s) wide; undefined before compute()
  };
  // The same between forward and backward.
  struct KeptTensors {
    Kept q, k, v, out, lse;
    // The tensors, and nothing is kept any more.
    Tensors take() { return {q.take(), k.take(), v.take(), out.take(), lse.take()}; }
  };
  // What holds for one forward pass.
  struct Call {
    bool is_shared;  // the sequence, by context-parallel ranks
    ops::AttentionMask mask;
    ops::AttentionDropout dropout;
    at::Tensor sinks = {};    // (n) wide; undefined: none
    bool with_dbias = false;  // backward gives the gradient of mask.bias too
  };

  // name      canonical, of the layer: "model.layers.0.self_attn"; draws of dropout depend on it
  // num_heads, num_kv_heads  of this rank
  // layer     number in the whole model
  // dropout   of probabilities, in training
  // UserError when the context-parallel exchange does not divide the heads.
  AttentionCore(const LayerContext& context, const std::string& name, int64_t layer, double scale, double dropout,
                int64_t num_heads, int64_t num_kv_heads);

  Call make_call(const ForwardContext& forward) const;

  // When ranks share the sequence, trades tokens for heads; otherwise does nothing.
  void exchange(Tensors& core, const Call& call) const;
  // out and lse from q, k and v as exchange() left them.
  void compute(Tensors& core, const Call& call) const;
  // What backward needs of a pass; is_recomputed: out and lse are computed again.
  KeptTensors keep(const Tensors& core, const Call& call, bool is_recomputed) const;
  // The same, of q, k and v that are kept in some other way; out and lse as above.
  KeptTensors keep(std::vector<Kept> qkv, const Tensors& core, const Call& call, bool is_recomputed) const;
  // dout like out; the gradients of what exchange() was given. With sinks, *dsinks gets theirs, of this rank's tokens.
  ops::AttentionGradients backward(const at::Tensor& dout, const Tensors& core, const Call& call,
                                   at::Tensor* dsinks = nullptr) const;

  // Keys and values of these positions go into the layer's slot; out (b, s, n, e). sinks as in Call.
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
