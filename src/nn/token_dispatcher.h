// Moves tokens to the ranks that hold their experts, and back. Experts are split over ep, e / ep each in ascending
// order, and cut over etp; every rank of etp x ep has its own tokens. Rows arrive sorted by local expert, source rank,
// token.
//
//   all-to-all   rows go to the etp ranks of their expert's ep rank, and partial results come back
//   all-gather   all ranks of etp x ep get all tokens and pick their experts' rows; results are scattered
//
// All forms are differentiable and differ only in the order of sums.
// Source: Lepikhin et al. 2020, arXiv:2006.16668; Gale et al. 2022, arXiv:2211.15841 (no dropping, no padding).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/groups.h"
#include "nn/expert_router.h"

namespace megalith {

// The inputs of a rank's experts.
struct ExpertRows {
  at::Tensor x;        // (n, h)
  at::Tensor weights;  // (n) wide: the router's weights of the results; differentiable
  at::Tensor offsets;  // (local experts + 1) int64
};

class TokenDispatcher {
 public:
  // name         for the trace: "model.layers.0.mlp"
  // num_experts  of the whole; ep divides it
  TokenDispatcher(const LayerContext& context, DispatcherKind kind, std::string name, int64_t num_experts);

  // x (t, h): this rank's tokens; all-gather needs equally many on every rank.
  // rows_per_expert: pads each local expert to this many with zero rows of weight zero; 0: no padding
  // meanwhile: runs while tokens are in flight, and its backward while their gradients are; may be empty
  // state: for combine()
  struct Dispatched;
  ExpertRows dispatch(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                      const std::function<void()>& meanwhile, std::shared_ptr<Dispatched>& state) const;

  // y (n, h): weighted results from this etp rank's part of its experts -> (t, h): each token's sum over its experts
  // and their parts.
  at::Tensor combine(const at::Tensor& y, const std::shared_ptr<Dispatched>& state) const;

 private:
  // The forms of dispatch(): return what arrived, and record its order in `state`.
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
