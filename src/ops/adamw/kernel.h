// The CPU kernel of adamw_.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// A run of elements of one shard: the kernel's unit of work.
struct AdamwPiece {
  Dtype model_dtype, moment_dtype;
  bool is_double;  // master and grad: double, else float
  int64_t count;
  void* model;  // null when there is no copy beside the master
  void* master;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  double lr, weight_decay;
};

struct AdamwStep {
  double grad_scale, beta1, beta2, eps;
  double correction1, correction2;  // 1 - beta^t
};

MEGALITH_DECLARE_CPU_KERNEL(adamw, (const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step));

}  // namespace megalith::ops::cpu
