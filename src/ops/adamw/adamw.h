// One pass of AdamW over many tensors: scales the gradient, updates moments and master weights, writes the model's
// copy.
//
//   g = grad_scale * grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w)
//
// as torch.optim.AdamW computes it (decay first: w *= 1 - lr * weight_decay, then the step), in float32 whatever the
// dtype of the states. Source: Loshchilov & Hutter 2017, arXiv:1711.05101.
//
// Beside a bf16 weight the master may be kept in less than 4 bytes:
//   remainder  the 16 bits that the weight lacks: master = weight + remainder, both as their bits. The weight is the
//              master's nearest bf16, as beside an fp32 master, and the results are the same to the bit. A master
//              halfway between two bf16 numbers needs a 17th bit, which side it lies on: the sign of exp_avg_sq, which
//              is never negative, has it (narrow_master.h).
//   none       the weight is all there is
// Moments in bf16, and weights without a master, are rounded to the nearest, or at random in proportion to what lies on
// either side (stochastically), so that the expected value is exact. The random numbers are a function of the step, the
// name of a tensor, and the element's place there, so it does not matter how tensors are divided into shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/adamw/kernel.h"
#include "ops/operator.h"

namespace megalith::ops {

// One shard: 1-d tensors of one length (or any shape, contiguous, with the same number of elements).
struct AdamwShard {
  at::Tensor model;  // bf16 | fp16 | fp32 | fp64: receives the rounded result; undefined when master is the model's own
  at::Tensor master;               // fp32 (fp64 for fp64 models); undefined: model, bf16, is the weight
  at::Tensor grad;                 // dtype of master, else fp32
  at::Tensor exp_avg, exp_avg_sq;  // fp32 or bf16 (fp64 for fp64 models)
  double lr = 0;
  double weight_decay = 0;
  at::Tensor remainder;           // int16, in the place of master
  std::optional<DrawnRun> drawn;  // rounds at random what is kept in bf16
};

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // t, counted from 1
};

// What only the device knows, where nobody waits for it: 0-d tensors beside the shards; undefined where the host knows.
struct AdamwDecision {
  at::Tensor step;     // fp64: t, in the place of AdamwOptions::step
  at::Tensor is_made;  // bool: false leaves all tensors as they are, whatever the gradients hold; undefined: true
};

// grad_scale  0-d tensor of fp32 or fp64 on the device of the shards: the clipping factor over the loss scale. Passed
//             as a tensor so that a GPU need not wait for the host.
void adamw_(const std::vector<AdamwShard>& shards, const at::Tensor& grad_scale, const AdamwOptions& options,
            Kernels kernels = Kernels::kFused, const AdamwDecision& decision = {});

struct AdamwTable {
  // The tensors of a shard have one dim. The decision is as the caller gave it.
  void (*step)(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
               const AdamwDecision& decision);
};
extern const AdamwTable kAdamwReference;
extern const Operator<AdamwTable> kAdamw;

}  // namespace megalith::ops
