// Few rows times a weight, which is read once, at the speed of memory: a register of sums per pair of a row and a
// column, over k in order. A pair's sum depends on nothing else, so a row gives the same bits in any company.
#include "ops/cpu/lane_sums.h"
#include "ops/cpu/tiles.h"
#include "ops/linear/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

// Rows of a block, and its sums: registers less those of operands.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kMostBlockRows = 8, kMostSums = 24;
#else
constexpr int kMostBlockRows = 4, kMostSums = 12;
#endif
constexpr int columns_of_block(int rows) { return kMostSums / rows < 8 ? kMostSums / rows : 8; }

template <typename T>
const T* weight_row(const FewRowsProduct& call, int64_t column) {
  return static_cast<const T*>(call.w) + column * call.w_stride;
}

// x widened by the task's thread.
template <typename T>
struct WideRows {
  using Element = T;
  static constexpr int64_t kDepth = kFloatLanes;
  const float* x;
  int64_t stride;

  const float* row(int64_t r) const { return x + r * stride; }
  template <typename Count>
  static Lanes<float> left(const float* p, Count /*count*/) { return Lanes<float>::loadu(p); }  // zero-padded
  template <typename Count>
  static Lanes<float> right(const T* p, Count count) { return load(p, count); }
  static void add(Lanes<float>& sum, const Lanes<float>& a, const Lanes<float>& b) { sum = at::vec::fmadd(a, b, sum); }
  using Left = Lanes<float>;
  using Right = Lanes<float>;
};

#if defined(CPU_CAPABILITY_AVX512)
// AVX512_BF16's sums of two products, which flush denormals.
struct PairRows {
  using Element = uint16_t;
  using Left = __m512i;
  using Right = __m512i;
  static constexpr int64_t kDepth = 32;
  const uint16_t* x;
  int64_t stride;

  const uint16_t* row(int64_t r) const { return x + r * stride; }
  static __m512i left(const uint16_t* p, std::integral_constant<int64_t, kDepth>) { return _mm512_loadu_si512(p); }
  static __m512i left(const uint16_t* p, int64_t count) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << count) - 1), p);
  }
  template <typename Count>
  static __m512i right(const uint16_t* p, Count count) { return left(p, count); }
  static void add(Lanes<float>& sum, __m512i a, __m512i b) {
    __m512 values = sum;
    asm("vdpbf16ps %2, %1, %0" : "+v"(values) : "v"(a), "v"(b));
    sum = values;
  }
};
#endif

// y of kRows rows and kColumns columns
template <int kRows, int kColumns, typename Rows>
void sum_block(const FewRowsProduct& call, const Rows& rows, int64_t first_row, int64_t column, float* y) {
  constexpr int64_t kDepth = Rows::kDepth;
  constexpr int kSums = (kRows * kColumns + kFloatLanes - 1) / kFloatLanes * kFloatLanes;
  Lanes<float> sums[kSums];  // in registers: all loops over it are unrolled
#pragma GCC unroll 32
  for (int i = 0; i < kSums; ++i) sums[i] = Lanes<float>(0);
  const auto* w = weight_row<typename Rows::Element>(call, column);
  const int64_t next_block = kColumns * call.w_stride;
  const auto step = [&](int64_t k, auto count) __attribute__((always_inline)) {
    typename Rows::Right right[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      right[c] = Rows::right(w + c * call.w_stride + k, count);
      __builtin_prefetch(w + c * call.w_stride + k + next_block);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename Rows::Left left = Rows::left(rows.row(first_row + r) + k, count);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) Rows::add(sums[r * kColumns + c], left, right[c]);
    }
  };
  int64_t k = 0;
  for (; k + kDepth <= call.k; k += kDepth) step(k, std::integral_constant<int64_t, kDepth>{});
  if (k < call.k) step(k, call.k - k);
#pragma GCC unroll 4
  for (int i = 0; i < kSums; i += kFloatLanes) lane_sums(sums + i, y + i);
}

template <typename T>
void store_sums(const FewRowsProduct& call, int64_t first_row, int rows, int64_t column, int columns, const float* y) {
  for (int r = 0; r < rows; ++r) {
    T* to = static_cast<T*>(call.y) + (first_row + r) * call.y_stride + column;
    for (int c = 0; c < columns; ++c) {
      const float sum = y[r * columns + c];
      const T* bias = static_cast<const T*>(call.bias);
      to[c] = static_cast<T>(bias == nullptr ? sum : sum + static_cast<float>(bias[column + c]));
    }
  }
}

template <typename T, int kRows, typename Rows>
void take_columns(const FewRowsProduct& call, const Rows& rows, int64_t first_row, int64_t begin, int64_t end) {
  constexpr int kColumns = columns_of_block(kRows);
  alignas(64) float y[(kRows * kColumns + kFloatLanes - 1) / kFloatLanes * kFloatLanes];
  int64_t column = begin;
  for (; column + kColumns <= end; column += kColumns) {
    sum_block<kRows, kColumns>(call, rows, first_row, column, y);
    store_sums<T>(call, first_row, kRows, column, kColumns, y);
  }
  for (; column < end; ++column) {
    sum_block<kRows, 1>(call, rows, first_row, column, y);
    store_sums<T>(call, first_row, kRows, column, 1, y);
  }
}

template <typename T, int kRows, typename Rows>
void take_rows(int64_t count, const FewRowsProduct& call, const Rows& rows, int64_t first_row, int64_t begin,
               int64_t end) {
  if constexpr (kRows > 1) {
    if (count < kRows) return take_rows<T, kRows - 1>(count, call, rows, first_row, begin, end);
  }
  take_columns<T, kRows>(call, rows, first_row, begin, end);
}

template <typename T, typename Rows>
void run_tasks(const FewRowsProduct& call, const Rows& rows, std::atomic<int64_t>* next) {
  const int64_t num_blocks = (call.m + kMostBlockRows - 1) / kMostBlockRows;
  for (int64_t task; (task = next->fetch_add(1)) < call.num_tasks();) {
    const int64_t begin = task * FewRowsProduct::kTaskColumns, most = begin + FewRowsProduct::kTaskColumns;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t first = block * call.m / num_blocks, last = (block + 1) * call.m / num_blocks;
      take_rows<T, kMostBlockRows>(last - first, call, rows, first, begin, most < call.n ? most : call.n);
    }
  }
}

template <typename T>
void run_wide_rows(const FewRowsProduct& call, std::atomic<int64_t>* next) {
  Scratch scratch;
  const int64_t stride = (call.k + kFloatLanes - 1) / kFloatLanes * kFloatLanes;
  auto* wide = scratch.take<float>(call.m * stride);
  for (int64_t r = 0; r < call.m; ++r) {
    const T* x = static_cast<const T*>(call.x) + r * call.x_stride;
    for_each_lanes<T>(call.k, [&](int64_t k, auto count) { load(x + k, count).store(wide + r * stride + k); });
  }
  run_tasks<T>(call, WideRows<T>{wide, stride}, next);
}

}  // namespace

void few_rows_product(const FewRowsProduct& call, std::atomic<int64_t>* next) {
  if (call.dtype == Dtype::kFloat16) return run_wide_rows<c10::Half>(call, next);
#if defined(CPU_CAPABILITY_AVX512)
  if (call.has_pairs) {
    return run_tasks<c10::BFloat16>(call, PairRows{static_cast<const uint16_t*>(call.x), call.x_stride}, next);
  }
#endif
  run_wide_rows<c10::BFloat16>(call, next);
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
