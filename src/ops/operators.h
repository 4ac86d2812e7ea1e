// Lists all operators with their implementations on a device.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

struct OperatorOrigin {
  const char* name;  // the public function's
  Origin origin;
};

// Every function of every table, in order. InternalError names one without an implementation there.
std::vector<OperatorOrigin> list_operators(at::Device device, Kernels kernels = Kernels::kFused);

}  // namespace megalith::ops
