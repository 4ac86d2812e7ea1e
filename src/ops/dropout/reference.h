// Counter-based dropout composed from ATen; see ops/dropout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops::reference {

at::Tensor dropout(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key);

}  // namespace megalith::ops::reference
