// Some tokens of activations, on every tensor-parallel rank: where a head begins that reads one token of a sequence.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith {

class Group;

// x      (t', h) as in nn/forward.h
// index  (b) int64, of the t tokens, on x's device
// tp     the ranks that the tokens are split over; null: all are here
// Returns (b, h), whole on all ranks. Backward expects the same gradient on all of them.
at::Tensor picked_tokens(const at::Tensor& x, const at::Tensor& index, Group* tp);

}  // namespace megalith
