// Types of operators' results, from those of their inputs (verify/distribution.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verify/distribution.h"

namespace megalith {

struct OperandType {
  at::Tensor tensor;  // may be undefined
  Distribution type;
};

struct OperatorTypes {
  Distribution result;
  Distribution of_sums;         // of results with one dim: sums over the tokens
  std::optional<Distribution> of_keys;  // of results shaped as the keys, where these are more than the queries
  std::vector<size_t> written;  // inputs that are changed, and get `result`, or `gradient` if it is set
  std::optional<Distribution> gradient;
};

// `why`, on an axis, about the operands first and second.
using TellMisfit = std::function<void(int axis, std::string_view why, size_t first, size_t second)>;

//   name       "aten::add_", "megalith::linear_forward"
//   parameter  type of the parameter whose gradient is written; may be null
//   num_axes   without the pipeline's
//   place      of this operator, for what it makes
OperatorTypes types_of_operator(std::string_view name, const std::vector<OperandType>& in,
                                const Distribution* parameter, int num_axes, int place, const TellMisfit& tell);

}  // namespace megalith
