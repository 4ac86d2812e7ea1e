// What the kernels of the experts' products get. On the CPU that is where nothing multiplies bf16 in pairs: any dtype,
// summed in fp32 (fp64 for fp64) in order of k, so that results repeat for any number of threads. Free of torch's
// headers.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// c (m, n) = a b, rounded once to its dtype; or c (+)= a b where c is wide.
struct WidenedProduct {
  int64_t m, n, k;
  const void* a;  // (m, k), or (k, m) where a is transposed
  int64_t a_stride;
  const void* b;  // (k, n), or (n, k) where b is transposed
  int64_t b_stride;
  void* c;
  int64_t c_stride;
  int64_t first_task;  // tasks of the products before this one
};

// The products of all experts, cut into tasks of kTaskRows x kTaskColumns of c.
struct WidenedProducts {
  static constexpr int64_t kTaskRows = 240, kTaskColumns = 128;
  Dtype dtype;  // of a and b
  bool a_is_transposed, b_is_transposed;
  bool c_is_wide, accumulate;  // accumulate: only where c is wide
  const WidenedProduct* products;
  int64_t num_products, num_tasks;
};
// Takes tasks from the counter until none is left; one call a thread.
MEGALITH_DECLARE_CPU_KERNEL(widened_products, (const WidenedProducts& all, std::atomic<int64_t>* next));

}  // namespace megalith::ops::cpu

// Pointers on the device, and the stream as its native handle. offsets (experts + 1): rows before each expert, and of
// all experts. Sums are in fp32 (fp64 for fp64), in order of k, and repeat to the bit.
namespace megalith::ops::gpu {

// y (rows, n) = x (rows, k) times the expert's matrix: w (experts, n, k) transposed, or w (experts, k, n). Rows behind
// the last expert's become 0. Bytes that must move: x and w of experts with rows, read, and y, written.
struct GroupedProduct {
  Dtype dtype;
  int64_t experts, rows, n, k;
  const int64_t* offsets;
  const void* x;
  int64_t x_stride;
  const void* w;
  bool w_is_transposed;
  void* y;
};
void grouped_product(const GroupedProduct& a, void* stream);

// dw (experts, o, h) wide (+)= dy^T x over the rows of each expert, where it lies. Bytes that must move: dy and x,
// read, and dw, written; when it is accumulated, dw of experts with rows, read and written.
struct GroupedGradient {
  Dtype dtype;
  int64_t experts, o, h;
  const int64_t* offsets;
  const void* dy;
  int64_t dy_stride;
  const void* x;
  int64_t x_stride;
  void* dw;
  bool accumulate;
};
void grouped_gradient(const GroupedGradient& a, void* stream);

}  // namespace megalith::ops::gpu
