// Notes of layers to a checker of distributions on this thread (verify/type_watch.h): what neither operators nor
// collectives show. Without a checker each costs a null test.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "comm/group.h"

namespace megalith {

class DistributionWatch {
 public:
  virtual ~DistributionWatch() = default;
  virtual at::Tensor cut(const at::Tensor& part, const std::vector<int>& ranks) = 0;
  virtual void share(const at::Tensor& tensor, const std::vector<int>& ranks, bool is_sent) = 0;
  virtual void sum(const at::Tensor& tensor, const std::vector<int>& ranks) = 0;
  virtual void take_from(const at::Tensor& tensor, const at::Tensor& other) = 0;
};

extern constinit thread_local DistributionWatch* distribution_watch;  // null: none

// ranks: of the world, with this one.

// `part` of a tensor that is equal on all ranks, each of which takes its own.
inline at::Tensor as_cut(at::Tensor part, const std::vector<int>& ranks) {
  return distribution_watch == nullptr ? std::move(part) : distribution_watch->cut(part, ranks);
}
inline at::Tensor as_cut(at::Tensor part, const Group& ranks) { return as_cut(std::move(part), ranks.ranks()); }

// `tensor` is equal on all ranks, and its gradient is a sum to which each rank has a summand.
inline at::Tensor as_shared(at::Tensor tensor, const Group& ranks) {
  if (distribution_watch != nullptr) distribution_watch->share(tensor, ranks.ranks(), /*is_sent=*/false);
  return tensor;
}

// The same of rows that their senders give to each of these ranks.
inline at::Tensor as_sent_to_all(at::Tensor tensor, const std::vector<int>& ranks) {
  if (distribution_watch != nullptr) distribution_watch->share(tensor, ranks, /*is_sent=*/true);
  return tensor;
}

// Distributed as `other` is.
inline at::Tensor as_distributed(at::Tensor tensor, const at::Tensor& other) {
  if (distribution_watch != nullptr) distribution_watch->take_from(tensor, other);
  return tensor;
}

// The ranks' tensors are summands of one.
inline at::Tensor as_summand(at::Tensor tensor, const Group& ranks) {
  if (distribution_watch != nullptr) distribution_watch->sum(tensor, ranks.ranks());
  return tensor;
}

}  // namespace megalith
