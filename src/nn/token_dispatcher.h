// Moves tokens to their experts' ranks and back. Experts are split over ep in ascending order, and cut over etp; every
// rank of etp x ep has its own tokens. Rows arrive sorted by local expert, source rank, token.
//
//   all-to-all   rows go to the etp ranks of their expert's ep rank, and partial results come back
//   all-gather   all ranks of etp x ep get all tokens and pick their experts' rows; results are scattered
//
// Sources: arXiv:2006.16668, arXiv:2211.15841 (no dropping, no padding).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/groups.h"
#include "nn/expert_router.h"

namespace megalith {

struct ExpertRows {
  at::Tensor x;        // (n, h)
  at::Tensor weights;  // (n) wide, differentiable
  at::Tensor offsets;  // (local experts + 1) int64
};

class TokenDispatcher {
 public:
  // num_experts  over all ranks; ep divides it
  TokenDispatcher(const LayerContext& context, DispatcherKind kind, std::string name, int64_t num_experts);

  // x                (t, h): this rank's tokens; all-gather needs equal t on all ranks
  // rows_per_expert  pads experts to this many, with zero rows of weight zero; 0: no padding
  // meanwhile        runs while tokens are in flight, its backward while their gradients are; may be empty
  // state            for combine()
  struct Dispatched;
  ExpertRows dispatch(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                      const std::function<void()>& meanwhile, std::shared_ptr<Dispatched>& state) const;

  // y (n, h): this etp rank's part of weighted results -> (t, h), summed over experts and parts.
  at::Tensor combine(const at::Tensor& y, const std::shared_ptr<Dispatched>& state) const;

 private:
  // Record the arrived order in `state`.
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
