// Digests of tensors' bits: whether two are equal to the last bit, without keeping both.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith {

// 64 bits of the tensor's bytes, in the order of its elements: 0-d int64 on its device, which the host need not wait
// for. Tensors that differ have the same one once in 2^64; by summed_digest() never, if they differ in one bit.
// Comparable only between tensors of one kind of device. Undefined and empty tensors have digests too. On the CPU XXH3;
// elsewhere the sum of the words, each mixed with its position, in pieces that take at most 128 MiB beside the tensor.
at::Tensor bits_digest(const at::Tensor& tensor);

// The sum by which devices do it, on any device: what tests hold it to.
at::Tensor summed_digest(const at::Tensor& tensor);

}  // namespace megalith
