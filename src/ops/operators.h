// Lists all operators with their implementation on a device.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

struct OperatorOrigin {
  const char* name;  // a table's function, by the name of the public one
  Origin origin;
};

// Every function of every operator's table, in order. InternalError names one without an implementation there.
std::vector<OperatorOrigin> list_operators(at::Device device, Kernels kernels = Kernels::kFused);

}  // namespace megalith::ops
