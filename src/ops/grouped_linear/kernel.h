// The experts' kernels. Sums are wide, in order of k, reproducible to the bit. The CPU's are for fp64, fp16, and
// bf16 where the processor has no pair products; linear/kernel.h has the others.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// c (m, n) = a b, rounded once; or c (+)= a b if wide.
struct WidenedProduct {
  int64_t m, n, k;
  const void* a;  // (m, k), or (k, m) if transposed
  int64_t a_stride;
  const void* b;  // (k, n), or (n, k) if transposed
  int64_t b_stride;
  void* c;
  int64_t c_stride;
  int64_t first_task;  // tasks of earlier products
};

// All experts', cut into tasks of kTaskRows x kTaskColumns.
struct WidenedProducts {
  static constexpr int64_t kTaskRows = 240, kTaskColumns = 128;
  Dtype dtype;  // of a and b
  bool a_is_transposed, b_is_transposed;
  bool c_is_wide, accumulate;  // accumulate needs a wide c
  const WidenedProduct* products;
  int64_t num_products, num_tasks;
};
// Each thread takes tasks from the counter.
MEGALITH_DECLARE_CPU_KERNEL(widened_products, (const WidenedProducts& all, std::atomic<int64_t>* next));

}  // namespace megalith::ops::cpu

// offsets (experts + 1): rows before each expert, and all.
namespace megalith::ops::gpu {

// y (rows, n) = x (rows, k) times the expert's w (experts, n, k), transposed, or w (experts, k, n). Rows after the last
// expert's become 0.
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

// dw (experts, o, h) wide (+)= dy^T x over each expert's rows.
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
