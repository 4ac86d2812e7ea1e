// What the kernel of the experts' products gets where nothing multiplies bf16 in pairs: any dtype, summed in fp32 (fp64
// for fp64) in order of k, so that results repeat for any number of threads.
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
