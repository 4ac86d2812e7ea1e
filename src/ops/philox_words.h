// Philox4x32-10 (core/philox.h) on tensors, for references.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops::reference {

// Word `lane` (0 … 3) of the block with counter (low, high), int64 tensors that broadcast: int64 in [0, 2^32), of the
// broadcast shape.
at::Tensor philox_words(uint64_t key, const at::Tensor& low, const at::Tensor& high, const at::Tensor& lane);

}  // namespace megalith::ops::reference
