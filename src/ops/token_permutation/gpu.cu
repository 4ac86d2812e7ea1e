// The host knows all sizes; nothing is read from the device.
//
// Sorts pairs by counting: a block finds each pair's number among those of its expert in the block; sums over blocks,
// then experts, give the rows before it.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/gpu/vector.h"
#include "ops/token_permutation/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kSortedPairs);

unsigned blocks_of(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

// A pair's expert, or -1 if dropped.
__device__ int expert_of(const SortByExpert& a, int64_t pair) {
  if (a.keep != nullptr && !a.keep[pair]) return -1;
  const int64_t expert = a.experts[pair];
  return expert >= 0 && expert < a.num_experts ? static_cast<int>(expert) : -1;
}

// slots[pair] = its expert's earlier pairs in this block; scratch[expert][block] = the expert's pairs in the block.
__global__ void count_pairs(SortByExpert a) {
  MEGALITH_SHARED(int, experts, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block = blockIdx.x, blocks = gridDim.x, pair = block * kThreads + thread;
  const int expert = pair < a.num_pairs ? expert_of(a, pair) : -1;
  experts[thread] = expert;
  for (int64_t e = thread; e < a.num_experts; e += kThreads) a.scratch[e * blocks + block] = 0;
  __syncthreads();
  int before = 0, after = 0;
  for (int i = 0; i < kThreads; ++i) {
    const int same = experts[i] == expert ? 1 : 0;
    before += i < thread ? same : 0;
    after += i > thread ? same : 0;
  }
  if (expert >= 0) {
    a.slots[pair] = before;
    if (after == 0) a.scratch[expert * blocks + block] = before + 1;
  }
}

// The sum of `value` over the block's threads before this one; total: over all. All threads call it.
template <typename N>
__device__ N sum_before(N value, N& total) {
  MEGALITH_SHARED(N, of_waves, kMostWaves);
  N sum = value;  // over the lanes up to this one
  for (int distance = 1; distance < wave_size(); distance *= 2) {
    const int source = lane() - distance;
    const N other = shuffle(sum, source < 0 ? 0 : source);
    if (source >= 0) sum += other;
  }
  __syncthreads();  // the last call's may still be read
  if (lane() == wave_size() - 1) of_waves[wave()] = sum;
  __syncthreads();
  N before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / wave_size(); ++w) {
    if (w < wave()) before += of_waves[w];
    total += of_waves[w];
  }
  return before + sum - value;
}

// scratch[expert][block] becomes the sum over earlier blocks, counts[expert] over all; a block of threads per expert.
__global__ void add_blocks_of_pairs(SortByExpert a, int64_t blocks) {
  const int64_t expert = blockIdx.x;
  int32_t* const counts = a.scratch + expert * blocks;
  int sum = 0;
  for (int64_t first = 0; first < blocks; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const int count = i < blocks ? counts[i] : 0;
    int total = 0;
    const int before = sum_before(count, total);
    if (i < blocks) counts[i] = sum + before;
    sum += total;
  }
  if (threadIdx.x == 0) a.counts[expert] = sum;
}

// One block: offsets from counts; with padding experts have equally many rows.
__global__ void add_experts(SortByExpert a) {
  int64_t sum = 0;
  for (int64_t first = 0; first < a.num_experts; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const int64_t count = i < a.num_experts ? a.counts[i] : 0;
    int64_t total = 0;
    const int64_t before = sum_before(count, total);
    if (i < a.num_experts) a.offsets[i] = a.rows_per_expert < 0 ? sum + before : i * a.rows_per_expert;
    sum += total;
  }
  if (threadIdx.x == 0) {
    a.offsets[a.num_experts] = a.rows_per_expert < 0 ? sum : a.num_experts * a.rows_per_expert;
  }
}

__global__ void place_pairs(SortByExpert a) {
  const int64_t blocks = gridDim.x, pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= a.num_pairs) return;
  const bool is_padded = a.rows_per_expert >= 0;
  const int expert = expert_of(a, pair);
  const int64_t place = expert < 0 ? 0 : a.scratch[expert * blocks + blockIdx.x] + a.slots[pair];
  if (expert < 0 || (is_padded && place >= a.rows_per_expert)) {
    a.slots[pair] = -1;
  } else {
    const int64_t row = a.offsets[expert] + place;
    a.slots[pair] = row;
    a.pairs[row] = pair;
    a.source[row] = pair / a.k;
  }
  // Rows after the last expert's are marked by the threads of their numbers.
  if (!is_padded && pair >= a.offsets[a.num_experts]) a.pairs[pair] = a.source[pair] = -1;
}

// Each expert's padding rows.
__global__ void mark_padding(SortByExpert a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.num_experts * a.rows_per_expert) return;
  if (row % a.rows_per_expert >= a.counts[row / a.rows_per_expert]) a.pairs[row] = a.source[row] = -1;
}

// Rows are copied in the widest units that addresses allow.
struct Unit16 {
  uint32_t words[4];
};

template <typename U>
__global__ void copy_rows(PermuteTokens a, int threads_of_row) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / threads_of_row) + threadIdx.x / threads_of_row;
  if (row >= a.rows) return;
  const int64_t units = a.row_bytes / static_cast<int64_t>(sizeof(U)), token = a.source[row];
  U* const to = reinterpret_cast<U*>(static_cast<char*>(a.y) + row * a.row_bytes);
  const U* const from = reinterpret_cast<const U*>(static_cast<const char*>(a.x) + token * a.x_stride_bytes);
  for (int64_t i = static_cast<int>(threadIdx.x) % threads_of_row; i < units; i += threads_of_row) {
    if constexpr (sizeof(U) == kVectorBytes) {
      Vector<uint32_t, 4> unit = {};
      if (token >= 0) unit = load_vector<4>(reinterpret_cast<const uint32_t*>(from + i));
      store_vector(reinterpret_cast<uint32_t*>(to + i), unit);
    } else {
      to[i] = token >= 0 ? from[i] : U(0);
    }
  }
}

template <typename T, int kCount>
__global__ void sum_rows(CombineTokens a, int threads_of_row) {
  using W = Wide<T>;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kThreads / threads_of_row) + threadIdx.x / threads_of_row;
  if (token >= a.tokens) return;
  const int64_t* const slots = a.slots + token * a.k;
  const W* const weights = a.weights == nullptr ? nullptr : static_cast<const W*>(a.weights) + token * a.k;
  const int64_t thread = static_cast<int>(threadIdx.x) % threads_of_row;
  for (int64_t i = thread * kCount; i < a.columns; i += int64_t{threads_of_row} * kCount) {
    W sums[kCount] = {};
    for (int64_t j = 0; j < a.k; ++j) {
      const int64_t slot = slots[j];
      if (slot < 0) continue;
      const auto y = load_vector<kCount>(static_cast<const T*>(a.y) + slot * a.y_stride + i);
      const W weight = weights == nullptr ? W(1) : weights[j];
      MEGALITH_UNROLL
      for (int c = 0; c < kCount; ++c) sums[c] += weight * widen(y[c]);
    }
    Vector<T, kCount> out;
    MEGALITH_UNROLL
    for (int c = 0; c < kCount; ++c) out[c] = Rounding<T>::of(sums[c]);
    store_vector(static_cast<T*>(a.out) + token * a.columns + i, out);
  }
}

// dy and dweights of a token's pairs in turn: dout comes from memory once, then from a cache.
template <typename T, int kCount>
__global__ void weigh_and_multiply_rows(CombineTokensBackward a) {
  using W = Wide<T>;
  const int64_t token = blockIdx.x, step = static_cast<int64_t>(blockDim.x) * kCount;
  const T* const dout = static_cast<const T*>(a.dout) + token * a.dout_stride;
  for (int64_t pair = token * a.k; pair < (token + 1) * a.k; ++pair) {
    const int64_t slot = a.slots[pair];
    const W weight = static_cast<const W*>(a.weights)[pair];
    const T* const y = static_cast<const T*>(a.y) + slot * a.y_stride;
    T* const dy = static_cast<T*>(a.dy) + slot * a.columns;
    W dot = 0;
    if (slot >= 0) {
      for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < a.columns; i += step) {
        const auto gradient = load_vector<kCount>(dout + i), row = load_vector<kCount>(y + i);
        Vector<T, kCount> result;
        MEGALITH_UNROLL
        for (int c = 0; c < kCount; ++c) {
          dot += widen(gradient[c]) * widen(row[c]);
          result[c] = Rounding<T>::of(weight * widen(gradient[c]));
        }
        store_vector(dy + i, result);
      }
    }
    dot = sum_over_block(dot);
    if (threadIdx.x == 0) static_cast<W*>(a.dweights)[pair] = dot;
  }
}

// Zeroes padding rows: a thread checks one row, its wave writes those found.
template <typename T, int kCount>
__global__ void clear_padding(CombineTokensBackward a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, first = row - lane();
  const uint64_t found = vote(row < a.rows && a.source[row] < 0);
  for (int i = 0; i < wave_size(); ++i) {
    if ((found >> i & 1) == 0) continue;
    T* const dy = static_cast<T*>(a.dy) + (first + i) * a.columns;
    Vector<T, kCount> zeros;
    MEGALITH_UNROLL
    for (int c = 0; c < kCount; ++c) zeros[c] = Rounding<T>::of(0);
    for (int64_t c = int64_t{lane()} * kCount; c < a.columns; c += int64_t{wave_size()} * kCount) {
      store_vector(dy + c, zeros);
    }
  }
}

// A power of two of threads per row of so many vectors: several short rows fit a block.
int threads_of(int64_t vectors) {
  int threads = 1;
  while (threads < kThreads && threads < vectors) threads *= 2;
  return threads;
}
unsigned blocks_of_rows(int64_t rows, int threads_of_row) { return blocks_of(rows * threads_of_row); }

// Calls body with a vector's elements, as a type: 16 bytes if all rows begin at a multiple of that.
template <typename T, typename Body>
void with_vector(bool is_aligned, Body&& body) {
  if (is_aligned) {
    body(std::integral_constant<int, kVectorBytes / sizeof(T)>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}
// Rows of these strides begin at multiples of 16 bytes if the first does.
template <typename T, typename... Strides>
bool are_vectors(Strides... strides) {
  return ((strides * static_cast<int64_t>(sizeof(T)) % kVectorBytes == 0) && ...);
}

template <typename U>
void launch_copy(const PermuteTokens& a, Stream stream) {
  const int threads_of_row = threads_of(a.row_bytes / static_cast<int64_t>(sizeof(U)));
  launch("permute_tokens", copy_rows<U>, blocks_of_rows(a.rows, threads_of_row), kThreads, 0, stream, a,
         threads_of_row);
}

}  // namespace

void sort_by_expert(const SortByExpert& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  const unsigned blocks = blocks_of(a.num_pairs);  // launches need blocks
  if (blocks > 0) launch("sort_by_expert, count", count_pairs, blocks, kThreads, 0, queue, a);
  if (a.num_experts > 0) {
    launch("sort_by_expert, blocks", add_blocks_of_pairs, static_cast<unsigned>(a.num_experts), kThreads, 0, queue, a,
           static_cast<int64_t>(blocks));
  }
  launch("sort_by_expert, experts", add_experts, 1, kThreads, 0, queue, a);
  if (blocks > 0) launch("sort_by_expert, place", place_pairs, blocks, kThreads, 0, queue, a);
  if (a.rows_per_expert > 0 && a.num_experts > 0) {
    launch("sort_by_expert, padding", mark_padding, blocks_of(a.num_experts * a.rows_per_expert), kThreads, 0, queue,
           a);
  }
}

void permute_tokens(const PermuteTokens& a, void* stream) {
  if (a.rows == 0 || a.row_bytes == 0) return;
  const auto queue = static_cast<Stream>(stream);
  if (are_aligned(a.x, a.y) && a.row_bytes % kVectorBytes == 0 && a.x_stride_bytes % kVectorBytes == 0) {
    launch_copy<Unit16>(a, queue);
  } else if (a.element_bytes == 8) {
    launch_copy<uint64_t>(a, queue);
  } else if (a.element_bytes == 4) {
    launch_copy<uint32_t>(a, queue);
  } else {
    launch_copy<uint16_t>(a, queue);
  }
}

void combine_tokens(const CombineTokens& a, void* stream) {
  if (a.tokens == 0 || a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector<T>(are_aligned(a.y, a.out) && are_vectors<T>(a.columns, a.y_stride), [&](auto count) {
      const int threads_of_row = threads_of(a.columns / count());
      launch("combine_tokens", sum_rows<T, count()>, blocks_of_rows(a.tokens, threads_of_row), kThreads, 0,
             static_cast<Stream>(stream), a, threads_of_row);
    });
  });
}

void combine_tokens_backward(const CombineTokensBackward& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_aligned = are_aligned(a.y, a.dout, a.dy) && are_vectors<T>(a.columns, a.y_stride, a.dout_stride);
    with_vector<T>(is_aligned, [&](auto count) {
      if (a.tokens > 0 && a.k > 0) {
        // Lanes exchange values, so waves of any width are whole.
        const int threads = threads_of(a.columns / count());
        launch("combine_tokens_backward, rows", weigh_and_multiply_rows<T, count()>, static_cast<unsigned>(a.tokens),
               static_cast<unsigned>(threads < 64 ? 64 : threads), 0, queue, a);
      }
      if (a.rows > 0 && a.columns > 0) {
        launch("combine_tokens_backward, padding", clear_padding<T, count()>, blocks_of(a.rows), kThreads, 0, queue, a);
      }
    });
  });
}

}  // namespace megalith::ops::gpu
