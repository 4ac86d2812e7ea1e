// The main loss of each of several data sets whose rows share batches. Only reported.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "nn/forward.h"

namespace megalith {

struct SetInput {
  at::Tensor ids;  // (b) int64: the data set that a row is of
  std::vector<std::string> names;  // of the terms, one for each set
};

// row_sums, row_weights  (b): sums of weight * loss and of weights over a row's tokens on this rank
std::vector<LossTerm> set_losses(const at::Tensor& row_sums, const at::Tensor& row_weights, const SetInput& sets);

}  // namespace megalith
