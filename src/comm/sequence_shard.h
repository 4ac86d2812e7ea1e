// The zig-zag: S tokens are cut into 2 p equal chunks for p context-parallel ranks; rank r holds chunks r and 2p - 1 -
// r. This balances causal attention.
//
//   p = 2, S = 8    rank 0: tokens 0 1 | 6 7    rank 1: tokens 2 3 | 4 5
//
// Source: Megatron-LM, megatron/training/utils.py, get_batch_on_this_cp_rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace megalith {

// Ascending.
std::array<int64_t, 2> zigzag_chunks(int size, int rank);

// Copies the rank's part of x: size(dim) / size along dim, which 2 * size divides. One rank: x itself.
at::Tensor zigzag_shard(const at::Tensor& x, int64_t dim, int size, int rank);

// (length / size) int64 on the CPU: the rank's token indices, ascending.
at::Tensor zigzag_indices(int64_t length, int size, int rank);

// parts (p, b, s, …), rank r's at r, any strides -> (b, p s, …) in sequence order, contiguous.
at::Tensor zigzag_join(const at::Tensor& parts);

// The inverse; converts the dtype.
void zigzag_split(const at::Tensor& whole, const at::Tensor& parts);

}  // namespace megalith
