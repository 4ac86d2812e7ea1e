// The list of all operators: which implementation of each runs on a device.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

struct OperatorOrigin {
  const char* name;  // a table's function, by the name of the public one
  Origin origin;
};

// Every function of every operator's table, in order. InternalError names one that has no implementation there.
std::vector<OperatorOrigin> list_operators(at::Device device, Kernels kernels = Kernels::kFused);

}  // namespace megalith::ops
