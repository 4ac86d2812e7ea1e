// Attention over a text, then a picture, with separate projections and head norms. Every token sees all.
//
// This rank's n heads; S = the parts' total length; r tp ranks share a sample's tokens under sequence parallelism, else
// r is 1. Source: arXiv:2403.03206, section 4.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/attention_core.h"
#include "nn/kept.h"
#include "nn/layer_parts.h"
#include "nn/norm.h"

namespace megalith {

class HeadNorms : public Module {
 public:
  HeadNorms(const LayerContext& context, const std::string& q_name, const std::string& k_name, int64_t head_dim,
            int64_t num_heads, double epsilon);

  Norm& q() { return q_; }
  Norm& k() { return k_; }

 private:
  Norm q_, k_;
};

class JointAttention : public Module {
 public:
  struct Part {
    at::Tensor qkv;  // (b s, 3 n d): [q | k | v]; each sample's tokens on rank 0, then rank 1, …
    HeadNorms* norms = nullptr;
  };

  // num_heads: over all ranks.
  JointAttention(const LayerContext& context, const std::string& name, int64_t num_heads, int64_t head_dim,
                 int64_t layer);

  // angles (1, S, d / 2) -> (b, S, n d).
  Activation forward(const std::vector<Part>& parts, int64_t b, int64_t ranks, const RotaryAngles& angles);

  int64_t num_heads() const { return num_heads_; }

 protected:
  // shape.s tokens of picture, shape.encoder_s of text.
  double own_forward_flops(const CostShape& shape) const override;

 private:
  friend struct JointAttentionFunction;

  int64_t num_heads_, head_dim_;
  SelectiveRecompute policy_;
  Kernels kernels_;
  AttentionCore core_;
};

}  // namespace megalith
