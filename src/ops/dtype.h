// Element types of kernels, without torch's headers.
#pragma once

namespace megalith::ops {

enum class Dtype { kFloat32, kFloat64, kBFloat16, kFloat16 };

}  // namespace megalith::ops
