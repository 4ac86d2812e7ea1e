// Tensor digests.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith {

// 64-bit digest of the bytes in element order: 0-d int64 on the tensor's device, without synchronising. XXH3 on the
// CPU, summed_digest() elsewhere: compare only within one kind of device.
at::Tensor bits_digest(const at::Tensor& tensor);

// Sums the words, each mixed with its position, in at most 128 MiB. Never collides if one bit differs.
at::Tensor summed_digest(const at::Tensor& tensor);

}  // namespace megalith
