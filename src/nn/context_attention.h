// Exact attention over a sequence that cp ranks share by the zig-zag (comm/sequence_shard.h). With U × R = cp, an
// all-to-all among U neighbours trades tokens for heads; their tokens together are one rank's zig-zag chunks in a ring
// of R.
//
//   kind        U    R    the R parts of keys and values
//   p2p         1    cp   a ring: each part is attended to while the next is in flight
//   all_gather  1    cp   gathered
//   a2a         cp   1    -
//   a2a+p2p     from hierarchical_context_parallel_sizes; a ring
//
// This rank's s tokens of S = cp s, n query and g KV heads; e channels per value. Sources: arXiv:2310.01889 (ring),
// arXiv:2309.14509 (Ulysses), arXiv:2405.07719 (both).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/context_parallel.h"
#include "comm/groups.h"
#include "nn/module.h"
#include "ops/attention/attention.h"

namespace megalith {

class ContextAttention {
 public:
  // In the ring's zig-zag order.
  struct Heads {
    at::Tensor q, k, v;  // (b, U s, n / U, d), (b, U s, g / U, d), (b, U s, g / U, e)
  };
  struct Masks {
    ops::AttentionMask mask;        // of the whole sequence's keys; no bias
    ops::AttentionDropout dropout;  // head_start: q's first
    at::Tensor sinks = {};          // (n) wide, before the exchange; undefined: none
  };
  struct Result {
    at::Tensor out;  // (b, s, n, e), q's dtype
    at::Tensor lse;  // (b, n / U, U s), wide
  };

  // name: for the trace. UserError if U does not divide the heads and KV heads.
  ContextAttention(const Groups& groups, ContextParallelKind kind, std::string name, double scale, int64_t num_heads,
                   int64_t num_kv_heads, ops::AttentionKernels kernels);

  // q (b, s, n, d), k (b, s, g, d), v (b, s, g, e), rotated.
  Heads exchange_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;

  Result forward(const Heads& heads, const Masks& masks) const;

  // dout (b, s, n, e) -> gradients of exchange_heads()'s arguments and, partial over ranks, of sinks (n), wide.
  ops::AttentionGradients backward(const at::Tensor& dout, const Heads& heads, const Result& result, const Masks& masks,
                                   at::Tensor* dsinks = nullptr) const;

  int cp_size() const { return ulysses_->size() * ring_->size(); }

 private:
  struct Part;

  Masks masks_of_heads(const Heads& heads, const Masks& masks) const;
  at::Tensor own_sinks(const Heads& heads, const at::Tensor& sinks) const;
  Part part_of(int source, const Heads& heads, const Masks& masks) const;
  std::vector<at::Tensor> to_heads(const std::vector<at::Tensor>& of_tokens, const char* what) const;
  std::vector<at::Tensor> to_tokens(const std::vector<at::Tensor>& of_heads, const char* what) const;

  Result attend(const Heads& heads, const Masks& masks) const;
  Result attend_gathered(const Heads& heads, const Masks& masks) const;
  Result attend_ring(const Heads& heads, const Masks& masks) const;
  ops::AttentionGradients differentiate(const at::Tensor& dout, const Heads& heads, const Result& result,
                                        const Masks& masks) const;
  ops::AttentionGradients differentiate_gathered(const at::Tensor& dout, const Heads& heads, const Result& result,
                                                 const Masks& masks) const;
  ops::AttentionGradients differentiate_ring(const at::Tensor& dout, const Heads& heads, const Result& result,
                                             const Masks& masks) const;
  std::pair<at::Tensor, at::Tensor> gather_keys(const Heads& heads) const;
  std::vector<Transfer> round_transfers(const std::pair<at::Tensor, at::Tensor>& out,
                                        const std::pair<at::Tensor, at::Tensor>& in) const;

  ContextParallelKind kind_;
  std::string name_;
  Groups::Pointer ulysses_, ring_;
  double scale_;
  int64_t num_heads_, num_kv_heads_;
  ops::AttentionKernels kernels_;
};

}  // namespace megalith
