// adamw_'s kernels.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// A run's place in the tensor that keys random numbers: element i is first + (i / columns) * row_stride + (i % columns)
// * column_stride.
struct DrawnRun {
  uint64_t key = 0;
  int64_t first = 0, columns = 1, row_stride = 0, column_stride = 1;
};

// See adamw.h.
enum class MasterForm { kWhole, kRemainder, kNone };

struct AdamwPiece {
  Dtype model_dtype, moment_dtype;
  bool is_double;        // master and grad: double, else float
  bool has_narrow_grad = false;  // grad: bf16
  int64_t count;
  void* model;   // may be null beside a master
  void* master;  // kRemainder: int16; kNone: null
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  double lr, weight_decay;
  MasterForm master_form = MasterForm::kWhole;
  bool is_stochastic = false;  // by the whole shard's `drawn`
  DrawnRun drawn;
  int64_t first = 0;
};

namespace cpu {

struct AdamwStep {
  double grad_scale, beta1, beta2, eps;
  double correction1, correction2;  // 1 - beta^t
  uint64_t number;                  // t
};
MEGALITH_DECLARE_CPU_KERNEL(adamw, (const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step));

}  // namespace cpu

namespace gpu {

inline constexpr int kAdamwScratch = 4;

// Whole shards. Bytes per element: 30 with fp32 moments and a bf16 copy, 22 with bf16 moments, 20 with a remainder too,
// 16 without a master.
struct AdamwStep {
  const AdamwPiece* shards;  // on the host; may change after the call
  int64_t num_shards;
  double beta1, beta2, eps;
  const void* grad_scale;  // float or double
  bool scale_is_double;
  const double* step;   // null: host_step
  const bool* is_made;  // null: true
  double host_step;
  double* scratch;  // (kAdamwScratch)
};
void adamw(const AdamwStep& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
