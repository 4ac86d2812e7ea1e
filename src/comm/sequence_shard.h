// The zig-zag, by which context-parallel ranks share a sequence.
//
// A sequence of S tokens is cut into 2 p equal chunks for p ranks; rank r holds chunks r and 2p - 1 - r. Under a causal
// mask early tokens see little and late ones much, so every rank has the same work.
//
//   p = 2, S = 8    rank 0: tokens 0 1 | 6 7    rank 1: tokens 2 3 | 4 5
//
// Source: Megatron-LM, megatron/training/utils.py, get_batch_on_this_cp_rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace megalith {

// The indices of a rank's two chunks, ascending.
std::array<int64_t, 2> zigzag_chunks(int size, int rank);

// The rank's part of x along dim, whose size 2 * size divides: size(dim) / size long, a copy. With one rank: x itself.
at::Tensor zigzag_shard(const at::Tensor& x, int64_t dim, int size, int rank);

// (length / size) int64 on the CPU: the indices of the rank's tokens in the sequence, ascending.
at::Tensor zigzag_indices(int64_t length, int size, int rank);

// parts (p, b, s, …), part r being rank r's, any strides -> (b, p s, …) in sequence order, contiguous.
at::Tensor zigzag_join(const at::Tensor& parts);

// The inverse: copies whole (b, p s, …) into parts (p, b, s, …), converting the dtype.
void zigzag_split(const at::Tensor& whole, const at::Tensor& parts);

}  // namespace megalith
