// Digests of tensors' bits, to compare tensors without keeping both.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith {

// 64 bits of the bytes in element order: 0-d int64 on the tensor's device, without synchronising. Different tensors
// collide once in 2^64; by summed_digest() never if they differ in one bit. Comparable only between devices of one
// kind. On the CPU XXH3; elsewhere the sum of the words, each mixed with its position, with at most 128 MiB of memory.
at::Tensor bits_digest(const at::Tensor& tensor);

// As on devices, but anywhere: the reference for tests.
at::Tensor summed_digest(const at::Tensor& tensor);

}  // namespace megalith
