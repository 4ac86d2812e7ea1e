// How fast this processor multiplies matrices now, for the time that the start-up report expects.
#pragma once

#include <c10/core/ScalarType.h>

namespace megalith {

// Floating-point operations a second of a product of 512 × 512 matrices on the CPU, with the threads that operators
// have: the best of a few, within some hundredths of a second. What a whole step reaches is less.
double measure_products(at::ScalarType dtype);

}  // namespace megalith
