// The CPU kernel of squared_norm.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

struct SquaredPiece {
  Dtype dtype;
  const void* values;
  int64_t count;
};

// sums[i] = sum of squares of piece i, in an order that depends on its length alone.
MEGALITH_DECLARE_CPU_KERNEL(squared_sums, (const SquaredPiece* pieces, int64_t num_pieces, double* sums));

}  // namespace megalith::ops::cpu
