// What the kernels of adamw_ get. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// A run of elements of one shard.
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

namespace cpu {

struct AdamwStep {
  double grad_scale, beta1, beta2, eps;
  double correction1, correction2;  // 1 - beta^t
};
MEGALITH_DECLARE_CPU_KERNEL(adamw, (const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step));

}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {

// The shards are whole. Bytes that must move for each element: 4 for the gradient, read; 4 for the master and 4 or 2
// for each moment, read and written; 2 or 4 for the model's copy, written. 30 with fp32 moments and a bf16 copy, 22
// with bf16 moments.
struct AdamwStep {
  const AdamwPiece* shards;  // on the host, which may change them when the call has returned
  int64_t num_shards;
  double beta1, beta2, eps;
  const void* grad_scale;  // one float, or double
  bool scale_is_double;
  const double* step;   // null: host_step
  const bool* is_made;  // null: it is; false changes nothing
  double host_step;
  double* scratch;  // (3), written before it is read
};
void adamw(const AdamwStep& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
