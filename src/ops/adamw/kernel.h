// What the kernels of adamw_ get. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// Where the elements of a run lie in the tensor after which random numbers are drawn: element i of the run is element
// first + (i / columns) * row_stride + (i % columns) * column_stride of it.
struct DrawnRun {
  uint64_t key = 0;  // of the tensor's name
  int64_t first = 0, columns = 1, row_stride = 0, column_stride = 1;
};

// What there is of a master beside the model's weight (adamw.h).
enum class MasterForm { kWhole, kRemainder, kNone };

// A run of elements of one shard.
struct AdamwPiece {
  Dtype model_dtype, moment_dtype;
  bool is_double;  // master and grad: double, else float
  int64_t count;
  void* model;   // null when there is no copy beside the master
  void* master;  // kRemainder: int16; kNone: null
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  double lr, weight_decay;
  MasterForm master_form = MasterForm::kWhole;
  bool is_stochastic = false;  // what is kept in bf16 is rounded at random: drawn by `drawn`, of the whole shard
  DrawnRun drawn;
  int64_t first = 0;  // element of the shard with which the piece begins
};

namespace cpu {

struct AdamwStep {
  double grad_scale, beta1, beta2, eps;
  double correction1, correction2;  // 1 - beta^t
  uint64_t number;                  // t
};
MEGALITH_DECLARE_CPU_KERNEL(adamw, (const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step));

}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {

inline constexpr int kAdamwScratch = 4;

// The shards are whole. Bytes that must move for each element: 4 for the gradient, read; 4 for the master and 4 or 2
// for each moment, read and written; 2 or 4 for the model's copy, written. 30 with fp32 moments and a bf16 copy, 22
// with bf16 moments. Weight and remainder are read and written, 2 each: 20 with bf16 moments, 16 without a master.
struct AdamwStep {
  const AdamwPiece* shards;  // on the host, which may change them when the call has returned
  int64_t num_shards;
  double beta1, beta2, eps;
  const void* grad_scale;  // one float, or double
  bool scale_is_double;
  const double* step;   // null: host_step
  const bool* is_made;  // null: it is; false changes nothing
  double host_step;
  double* scratch;  // (kAdamwScratch), written before it is read
};
void adamw(const AdamwStep& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
