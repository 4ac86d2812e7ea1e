// One pass over rows, then one over their log-sum-exps, which the first reads.
#include <cmath>

#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/merge_attention/kernel.h"

namespace megalith::ops::gpu {
namespace {

struct RowPlace {
  int64_t sequence, token, head;

  // 32 bits: a 64-bit division costs a hundred instructions.
  __device__ RowPlace(const MergeAttention& a, int64_t row) {
    const auto number = static_cast<unsigned>(row), heads = static_cast<unsigned>(a.heads);
    const unsigned of_batch = number / heads, tokens = static_cast<unsigned>(a.tokens);
    head = number % heads;
    sequence = of_batch / tokens;
    token = of_batch % tokens;
  }
  __device__ int64_t start(const int64_t (&strides)[3]) const {
    return sequence * strides[0] + token * strides[1] + head * strides[2];
  }
};

template <typename W>
struct MergedRow {
  W both, weight, more_weight;  // weights of the row so far, and of the addition

  __device__ MergedRow(const MergeAttention& a, const RowPlace& place) {
    const W so_far = static_cast<const W*>(a.lse)[place.start(a.lse_strides)];
    const W more = static_cast<const W*>(a.more_lse)[place.start(a.more_lse_strides)];
    const W larger = so_far < more ? more : so_far, smaller = so_far < more ? so_far : more;
    // The difference of equal infinities is NaN.
    both =
        larger == smaller ? larger + W(0.6931471805599453) : larger + static_cast<W>(::log1p(::exp(smaller - larger)));
    // exp(-inf - 0) = 0, but exp(-inf + inf) is NaN.
    const W base = both < 0 && both - both != 0 ? W(0) : both;
    weight = ::exp(so_far - base);
    more_weight = ::exp(more - base);
  }
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads) merge_rows(VectorGrid grid, MergeAttention a) {
  using W = Wide<T>;
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const RowPlace place(a, row);
    const MergedRow<W> merged(a, place);
    W* const out = static_cast<W*>(a.out) + place.start(a.out_strides) + vector * kCount;
    auto sum = load_vector<kCount>(static_cast<const W*>(out));
    const auto more =
        load_vector<kCount>(static_cast<const T*>(a.more_out) + place.start(a.more_out_strides) + vector * kCount);
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) sum[i] = sum[i] * merged.weight + widen(more[i]) * merged.more_weight;
    store_vector(out, sum);
  });
}

template <typename W>
__global__ void __launch_bounds__(kElementwiseThreads) merge_statistics(VectorGrid grid, MergeAttention a) {
  for_each_vector(grid, [&](int64_t, int64_t row) {
    const RowPlace place(a, row);
    static_cast<W*>(a.lse)[place.start(a.lse_strides)] = MergedRow<W>(a, place).both;
  });
}

bool are_vectors(const int64_t (&strides)[3]) {
  return strides[0] % 4 == 0 && strides[1] % 4 == 0 && strides[2] % 4 == 0;
}

}  // namespace

void merge_attention(const MergeAttention& a, void* stream) {
  const int64_t rows = a.batch * a.tokens * a.heads;
  if (rows >> 32 != 0) throw std::runtime_error("merge_attention: more than 2^32 rows in one call");
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = sizeof(T) < sizeof(double) ? 4 : 1;  // 16 bytes of out
    const bool is_aligned = are_aligned(a.out, a.more_out) && a.channels % kCount == 0 && are_vectors(a.out_strides) &&
                            are_vectors(a.more_out_strides);
    if (is_aligned) {
      launch_vectors("merge_attention", merge_rows<T, kCount>, rows, a.channels / kCount, stream, a);
    } else {
      launch_vectors("merge_attention", merge_rows<T, 1>, rows, a.channels, stream, a);
    }
    launch_vectors("merge_attention, log-sum-exp", merge_statistics<Wide<T>>, 1, rows, stream, a);
  });
}

}  // namespace megalith::ops::gpu
