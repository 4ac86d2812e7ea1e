// This CPU's current matrix product speed, for the start-up report's estimate.
#pragma once

#include <c10/core/ScalarType.h>

namespace megalith {

// FLOP/s of a 512 × 512 product with the operators' threads: the best of several, in a few hundredths of a second.
// Whole steps reach less.
double measure_products(at::ScalarType dtype);

}  // namespace megalith
