// Also the constants of Sinkhorn's definition.
#pragma once

#include <cstdint>

#include "ops/dtype.h"

namespace megalith::ops {

inline constexpr double kSinkhornTolerance = 1e-4, kSinkhornEpsilon = 1e-8;
// Rarely chosen columns' factors are large: rounding errors could keep them moving.
inline constexpr int kMostSinkhornRounds = 1000;

namespace gpu {

// The kernel's most columns, and its scratch's numbers.
inline constexpr int64_t kMostSinkhornColumns = 512;
inline constexpr int64_t sinkhorn_scratch(int64_t rows, int64_t columns) { return rows + 33 * columns; }

struct SinkhornCall {
  Dtype dtype;  // x's: kFloat32 | kFloat64
  int64_t rows, columns;
  const void* x;
  double* y;
  double* scratch;
};
void sinkhorn(const SinkhornCall& a, void* stream);

}  // namespace gpu
}  // namespace megalith::ops
