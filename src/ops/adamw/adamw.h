// AdamW over many tensors in one pass: scales gradients, updates moments and master weights, writes the model's copy.
//
//   g = grad_scale * grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w)
//
// like torch.optim.AdamW (decay first: w *= 1 - lr * weight_decay, then the step), in float32 for any dtype of states.
// Source: Loshchilov & Hutter 2017, arXiv:1711.05101.
//
// Beside a bf16 weight the master may take less than 4 bytes:
//   remainder  the 16 bits that the weight lacks: master = weight + remainder, as bits; the weight is the master's
//   nearest
//              bf16, and results equal those of an fp32 master to the bit. The side of a tie needs a 17th bit: the sign
//              of exp_avg_sq, otherwise never negative (narrow_master.h).
//   none       only the weight
// bf16 moments, and weights without a master, are rounded to nearest, or stochastically with exact expected value.
// Random numbers depend on the step, the tensor's name and the element's position, not on the division into shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/adamw/kernel.h"
#include "ops/operator.h"

namespace megalith::ops {

// 1-d tensors of one length (or any shape, contiguous, with the same number of elements).
struct AdamwShard {
  at::Tensor model;  // bf16 | fp16 | fp32 | fp64: receives the rounded result; undefined if it is the master
  at::Tensor master;               // fp32 (fp64 for fp64 models); undefined: model, bf16, is the weight
  at::Tensor grad;                 // dtype of master, else fp32; bf16 unless fp64
  at::Tensor exp_avg, exp_avg_sq;  // fp32 or bf16 (fp64 for fp64 models)
  double lr = 0;
  double weight_decay = 0;
  at::Tensor remainder;           // int16, instead of master
  std::optional<DrawnRun> drawn;  // rounds stochastically what is kept in bf16
};

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // t, from 1
};

// 0-d tensors beside the shards for what only the device knows; undefined if the host knows.
struct AdamwDecision {
  at::Tensor step;     // fp64: t, overrides AdamwOptions::step
  at::Tensor is_made;  // bool: false leaves all tensors unchanged, whatever the gradients; undefined: true
};

// grad_scale  0-d fp32 or fp64 on the shards' device: the clipping factor over the loss scale. A tensor, so a GPU does
//            not wait for the host.
void adamw_(const std::vector<AdamwShard>& shards, const at::Tensor& grad_scale, const AdamwOptions& options,
            Kernels kernels = Kernels::kFused, const AdamwDecision& decision = {});

struct AdamwTable {
  void (*step)(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
               const AdamwDecision& decision);
};
extern const AdamwTable kAdamwReference;
extern const Operator<AdamwTable> kAdamw;

}  // namespace megalith::ops
