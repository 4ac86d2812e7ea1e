// A block of threads per row. Maximum and sum of exponentials come from one reading: a thread keeps the sum of exp(x -
// its maximum so far), rescaled when that rises (Milakov & Gimelshein 2018, arXiv:1805.02867). Threads' sums are joined
// in order.
#include <cmath>

#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/gpu/vector.h"
#include "ops/linear_cross_entropy/kernel.h"

namespace megalith::ops::gpu {
namespace {

// At least two waves of any width, so that joining threads is a barrier, too.
constexpr int kFewestRowThreads = 128, kMostRowThreads = 512;

template <typename T>
struct Rows {
  int64_t columns, valid, stride;
  T* logits;
  const int64_t* labels;
  int64_t vocab_start;
  Wide<T>*row_max, *sum_exp, *target_logit;
  const Wide<T>*lse, *row_scale;
  Wide<T>* losses;
  bool with_grad;

  __device__ T* row(int64_t i) const { return logits + i * stride; }
  __device__ int64_t target(int64_t i) const {
    const int64_t column = labels[i] - vocab_start;
    return column >= 0 && column < valid ? column : -1;
  }
};

template <typename W>
constexpr W kInfinity = static_cast<W>(HUGE_VAL);

__device__ inline double exp_of(double x, double shift, double /*of T*/) { return exp(x - shift); }
__device__ inline float exp_of(float x, float shift, float /*of T*/) { return expf(x - shift); }
// An error of 2^-22 per unit of difference vanishes in 16 bits.
template <typename T>
__device__ float exp_of(float x, float shift, T /*of T*/) {
  return exp2f((x - shift) * 1.44269504f);
}
__device__ inline double log_of(double x) { return log(x); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double expm1_of(double x) { return expm1(x); }
__device__ inline float expm1_of(float x) { return expm1f(x); }

// body(first, elements) over p: aligned vectors of 16 bytes, and single elements around them. `elements` are Vector<T,
// n>; body returns true to store them. A thread meets the same elements in each call with the same p and count.
template <typename T, typename Body>
__device__ void for_each_vector(T* p, int64_t count, Body&& body) {
  constexpr int kCount = kVectorBytes / sizeof(T);
  const int64_t offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kVectorBytes / sizeof(T));
  const int64_t wanted = (kCount - offset) % kCount, head = wanted < count ? wanted : count;
  const int64_t vectors = (count - head) / kCount, tail = head + vectors * kCount;
  const int64_t thread = threadIdx.x, threads = blockDim.x;
  const auto visit_one = [&](int64_t i) {
    Vector<T, 1> element = load_vector<1>(p + i);
    if (body(i, element)) store_vector(p + i, element);
  };
  if (thread < head) visit_one(thread);
  for (int64_t v = thread; v < vectors; v += threads) {
    const int64_t i = head + v * kCount;
    Vector<T, kCount> elements = load_vector<kCount>(p + i);
    if (body(i, elements)) store_vector(p + i, elements);
  }
  if (thread < count - tail) visit_one(tail + thread);
}

template <typename W>
struct SoftmaxSum {
  W highest, sum;  // of exp(x - highest); known to all threads
};

template <typename T>
__device__ SoftmaxSum<Wide<T>> softmax_sum(T* logits, int64_t count) {
  using W = Wide<T>;
  const auto shift_of = [](W highest) {
    // exp(-inf - 0) = 0, but exp(-inf + inf) is NaN.
    return highest == -kInfinity<W> ? W(0) : highest;
  };
  W highest = -kInfinity<W>, sum = 0;
  for_each_vector(logits, count, [&](int64_t /*first*/, const auto& elements) {
    constexpr int kCount = sizeof(elements) / sizeof(T);
    W wide[kCount], largest = widen(elements[0]);
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      wide[i] = widen(elements[i]);
      largest = Max{}(largest, wide[i]);
    }
    if (!(largest <= highest)) {  // larger, or NaN
      const W before = highest;
      highest = Max{}(highest, largest);
      sum *= exp_of(before, shift_of(highest), T{});
    }
    const W shift = shift_of(highest);
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) sum += exp_of(wide[i], shift, T{});
    return false;
  });
  const W of_row = max_over_block(highest);
  return {of_row, sum_over_block(sum * exp_of(highest, shift_of(of_row), T{}))};
}

// logits <- scale * (exp(logits - lse) - onehot(target)), 0 from `valid` on.
template <typename T>
__device__ void write_gradient(T* logits, int64_t columns, int64_t valid, int64_t target, Wide<T> lse, Wide<T> scale) {
  using W = Wide<T>;
  // Ignored rows give zeros even if logits are not finite.
  const int64_t counted = scale == 0 ? 0 : valid;
  for_each_vector(logits, counted, [&](int64_t first, auto& elements) {
    constexpr int kCount = sizeof(elements) / sizeof(T);
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const W x = widen(elements[i]);
      // expm1 keeps a probability's digits near 1.
      const W difference = first + i == target ? expm1_of(x - lse) : exp_of(x, lse, T{});
      elements[i] = Rounding<T>::of(difference * scale);
    }
    return true;
  });
  for (int64_t i = counted + threadIdx.x; i < columns; i += blockDim.x) logits[i] = Rounding<T>::of(0);
}

template <typename T>
__global__ void statistics(Rows<T> a) {
  const int64_t row = blockIdx.x, target = a.target(row);
  T* const logits = a.row(row);
  const SoftmaxSum<Wide<T>> found = softmax_sum(logits, a.valid);
  if (threadIdx.x != 0) return;
  a.row_max[row] = found.highest;
  a.sum_exp[row] = found.sum;
  a.target_logit[row] = target >= 0 ? widen(logits[target]) : Wide<T>(0);
}

template <typename T>
__global__ void gradient(Rows<T> a) {
  const int64_t row = blockIdx.x;
  write_gradient(a.row(row), a.columns, a.valid, a.target(row), a.lse[row], a.row_scale[row]);
}

template <typename T>
__global__ void loss_and_gradient(Rows<T> a) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, target = a.target(row);
  T* const logits = a.row(row);
  const W scale = a.row_scale[row];
  W lse = 0, loss = 0;
  if (scale != 0) {
    const W at_target = threadIdx.x == 0 && target >= 0 ? widen(logits[target]) : W(0);  // before it is overwritten
    const SoftmaxSum<W> found = softmax_sum(logits, a.valid);
    lse = found.highest + log_of(found.sum);
    loss = lse - at_target;
  }
  if (threadIdx.x == 0) a.losses[row] = loss;
  if (a.with_grad) write_gradient(logits, a.columns, a.valid, target, lse, scale);
}

unsigned threads_of(int64_t columns, size_t element_bytes) {
  const int64_t bytes = columns * static_cast<int64_t>(element_bytes);
  int threads = kFewestRowThreads;
  while (threads < kMostRowThreads && int64_t{threads} * kVectorBytes < bytes) threads *= 2;
  return static_cast<unsigned>(threads);
}

template <typename Choose>
void launch_rows(const char* name, const LogitRows& a, void* stream, Choose&& choose) {
  if (a.rows == 0) return;  // launches need blocks
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const Rows<T> rows{.columns = a.columns,
                       .valid = a.valid,
                       .stride = a.stride,
                       .logits = static_cast<T*>(a.logits),
                       .labels = a.labels,
                       .vocab_start = a.vocab_start,
                       .row_max = static_cast<W*>(a.row_max),
                       .sum_exp = static_cast<W*>(a.sum_exp),
                       .target_logit = static_cast<W*>(a.target_logit),
                       .lse = static_cast<const W*>(a.lse),
                       .row_scale = static_cast<const W*>(a.row_scale),
                       .losses = static_cast<W*>(a.losses),
                       .with_grad = a.with_grad};
    launch(name, choose(zero), static_cast<unsigned>(a.rows), threads_of(a.columns, sizeof(T)), 0,
           static_cast<Stream>(stream), rows);
  });
}

}  // namespace

void softmax_statistics(const LogitRows& a, void* stream) {
  launch_rows("softmax_statistics", a, stream, [](auto zero) { return statistics<decltype(zero)>; });
}

void cross_entropy_gradient(const LogitRows& a, void* stream) {
  launch_rows("cross_entropy_gradient", a, stream, [](auto zero) { return gradient<decltype(zero)>; });
}

void cross_entropy(const LogitRows& a, void* stream) {
  launch_rows("cross_entropy", a, stream, [](auto zero) { return loss_and_gradient<decltype(zero)>; });
}

}  // namespace megalith::ops::gpu
