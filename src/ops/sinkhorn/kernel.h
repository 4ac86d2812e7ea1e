// Arguments of the kernel of Sinkhorn's balance, and the constants of its definition.
#pragma once

#include <cstdint>

#include "ops/dtype.h"

namespace megalith::ops {

inline constexpr double kSinkhornTolerance = 1e-4, kSinkhornEpsilon = 1e-8;
// Factors of rarely chosen columns are large, so rounding errors could keep them moving.
inline constexpr int kMostSinkhornRounds = 1000;

namespace gpu {

// Most columns of the kernel, and the numbers of its scratch.
inline constexpr int64_t kMostSinkhornColumns = 512;
inline constexpr int64_t sinkhorn_scratch(int64_t rows, int64_t columns) { return rows + 33 * columns; }

struct SinkhornCall {
  Dtype dtype;  // of x: kFloat32 | kFloat64
  int64_t rows, columns;
  const void* x;
  double* y;
  double* scratch;  // written before it is read
};
void sinkhorn(const SinkhornCall& a, void* stream);

}  // namespace gpu
}  // namespace megalith::ops
