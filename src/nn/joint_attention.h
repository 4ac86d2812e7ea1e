// Attention over one sequence of a text, then a picture, with separate projections and head norms, rotated together.
// Every token sees all.
//
// b samples; n heads of this rank, d channels per head; S = the sum of the parts' lengths; r tp ranks share a sample's
// tokens under sequence parallelism, else r is 1.
// Source: Esser et al. 2024, arXiv:2403.03206, section 4.
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
    at::Tensor qkv;  // (r b s / r, 3 n d): [q | k | v]; of every sample its tokens on rank 0, then those of rank 1, …
    HeadNorms* norms = nullptr;
  };

  // name       canonical, of the block: "transformer_blocks.0.attn"
  // num_heads  of the whole; UserError if tp does not divide it
  // layer      index in the whole model
  JointAttention(const LayerContext& context, const std::string& name, int64_t num_heads, int64_t head_dim,
                 int64_t layer);

  // angles of the S tokens (1, S, d / 2) -> (b, S, n d), parts concatenated; differentiable.
  Activation forward(const std::vector<Part>& parts, int64_t b, int64_t ranks, const RotaryAngles& angles);

  int64_t num_heads() const { return num_heads_; }

 protected:
  // For shape.s tokens of a picture and shape.encoder_s of a text.
  double own_forward_flops(const CostShape& shape) const override;

 private:
  friend struct JointAttentionFunction;

  int64_t num_heads_, head_dim_;
  SelectiveRecompute policy_;
  Kernels kernels_;
  AttentionCore core_;
};

}  // namespace megalith
