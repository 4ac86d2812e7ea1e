// AdamW over many tensors in one pass: scales gradients, updates moments and master weights, writes the model's copy.
//
//   g = grad_scale * grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w)
//
// like torch.optim.AdamW (decay first: w *= 1 - lr * weight_decay), in float32 for any dtype of states. Source:
// arXiv:1711.05101 (AdamW).
//
// A bf16 weight's master may take less than 4 bytes:
//   remainder  the 16 bits that the weight lacks; results equal an fp32 master's to the bit (narrow_master.h)
//   none       only the weight
// bf16 moments, and weights without a master, are rounded to nearest, or stochastically with exact expected value, by
// step, the tensor's name and the element's position, whatever the shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/adamw/kernel.h"
#include "ops/operator.h"

namespace megalith::ops {

// Contiguous tensors with equally many elements.
struct AdamwShard {
  at::Tensor model;  // bf16 | fp16 | fp32 | fp64: receives the rounded result; undefined if it is the master
  at::Tensor master;               // fp32 (fp64 for fp64 models); undefined: model, bf16, is the weight
  at::Tensor grad;                 // dtype of master, else fp32; bf16 unless fp64
  at::Tensor exp_avg, exp_avg_sq;  // fp32 or bf16 (fp64 for fp64 models)
  double lr = 0;
  double weight_decay = 0;
  at::Tensor remainder;           // int16, instead of master
  std::optional<DrawnRun> drawn;  // rounds bf16 states stochastically
};

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // t, from 1
};

// 0-d tensors that only the device knows; undefined if the host does.
struct AdamwDecision {
  at::Tensor step;     // fp64, overrides AdamwOptions::step
  at::Tensor is_made;  // bool: false changes nothing; undefined: true
};

// grad_scale: 0-d fp32 or fp64 on the shards' device (the host need not wait): clipping factor over loss scale.
void adamw_(const std::vector<AdamwShard>& shards, const at::Tensor& grad_scale, const AdamwOptions& options,
            Kernels kernels = Kernels::kFused, const AdamwDecision& decision = {});

struct AdamwTable {
  void (*step)(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
               const AdamwDecision& decision);
};
extern const AdamwTable kAdamwReference;
extern const Operator<AdamwTable> kAdamw;

}  // namespace megalith::ops
