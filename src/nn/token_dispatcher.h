// The way of tokens to the ranks that hold their experts, and back.
//
// The experts of a layer lie over the ep ranks, e / ep on each in ascending order, and each is cut over the etp ranks.
// Every rank of etp x ep has tokens of its own. Rows reach the experts sorted by local expert; within one by the rank
// they come from, and by token.
//
//   all-to-all   each row is sent to the etp ranks of its expert's ep rank, and their parts of the result come back
//   all-gather   all ranks of etp x ep get all tokens, and choose the rows of their experts; results are scattered
//
// All forms are differentiable and differ only in the order of sums. One rank exchanges nothing.
// Source: Lepikhin et al. 2020, arXiv:2006.16668; Gale et al. 2022, arXiv:2211.15841 (no dropping, no padding).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/groups.h"
#include "nn/expert_router.h"

namespace megalith {

// What the experts of a rank get.
struct ExpertRows {
  at::Tensor x;        // (n, h)
  at::Tensor weights;  // (n) wide: the router's, by which each row's result counts; differentiable
  at::Tensor offsets;  // (local experts + 1) int64
};

class TokenDispatcher {
 public:
  // name         for the trace: "model.layers.0.mlp"
  // num_experts  of the whole; ep divides it
  TokenDispatcher(const LayerContext& context, DispatcherKind kind, std::string name, int64_t num_experts);

  // x (t, h): this rank's tokens; for all-gather every rank has as many.
  // rows_per_expert: rows of padding (zeros, of weight zero) bring each local expert to so many; 0: none.
  // meanwhile: computed while the tokens are on their way, and its backward while their gradients are; may be empty.
  // state: what combine() needs.
  struct Dispatched;
  ExpertRows dispatch(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                      const std::function<void()>& meanwhile, std::shared_ptr<Dispatched>& state) const;

  // y (n, h): results of the rows, weighted already, of this etp rank's part of its experts -> (t, h): for each token
  // of dispatch() the sum of its experts' results, over their parts too.
  at::Tensor combine(const at::Tensor& y, const std::shared_ptr<Dispatched>& state) const;

 private:
  // The forms of dispatch(): they give what has arrived, and leave in `state` which of it is whose row.
  struct Arrived {
    at::Tensor x, weights;
  };
  Arrived exchange_rows(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                        const std::function<void()>& meanwhile, Dispatched& state) const;
  Arrived gather_tokens(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                        const std::function<void()>& meanwhile, Dispatched& state) const;

  Groups::Pointer group_;  // etp x ep, etp fastest
  int etp_, ep_;
  DispatcherKind kind_;
  std::string name_;
  int64_t num_experts_;
  Kernels kernels_;
};

}  // namespace megalith
