// FLUX's two kinds of blocks. A joint block has separate norms, projections and MLPs for picture and text, and attends
// to both; a single block reads both as one sequence and computes attention and MLP side by side.
//
// b samples of n picture and l text tokens; h channels; a sample's vec (b, h) modulates everything.
//
// Under sequence parallelism each of r tp ranks (else r is 1) has n / r picture and l / r text tokens of every sample.
// Gathered tokens are sorted by rank, then sample; a single block sees rank 0's text and picture, then rank 1's:
// attention is order-free, only the angles must match.
// Sources: Esser et al. 2024, arXiv:2403.03206; Dehghani et al. 2023, arXiv:2302.05442 (side by side); Black Forest
// Labs, FLUX.1. Names are diffusers'.
#pragma once

#include <cstdint>
#include <string>

#include "nn/joint_attention.h"
#include "nn/linear.h"
#include "nn/modulation.h"

namespace megalith {

inline constexpr double kFluxEpsilon = 1e-6;  // of all its norms

struct FluxBlockOptions {
  int64_t hidden = 0, ffn = 0, num_heads = 0;
  int64_t layer = 0;                           // index in the whole model

  int64_t head_dim() const { return hidden / num_heads; }
};

struct FluxPass {
  int64_t b = 0, ranks = 1;
  RotaryAngles angles;         // of text and picture, (1, l + n, d / 2)
  RotaryAngles single_angles;  // in a single block's order
  at::Tensor image_rows;       // (b n) int64: token numbers for adapter dropout; undefined: none
  at::Tensor text_rows;        // (b l)
  at::Tensor all_rows;         // (b (l + n)), a single block's
};

class FluxJointBlock : public Module {
 public:
  // name  canonical: "transformer_blocks.0"
  FluxJointBlock(const LayerContext& context, const std::string& name, const FluxBlockOptions& options);

  struct Streams {
    at::Tensor image, text;  // (b n / r, h), (b l / r, h)
  };
  Streams forward(const Streams& in, const at::Tensor& vec, const FluxPass& pass);

 protected:
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  class Stream : public Module {
   public:
    struct Names {
      std::string norm, q, k, v, q_norm, k_norm, output, mlp;
    };
    Stream(const LayerContext& context, const std::string& block, const Names& names, const FluxBlockOptions& options);

    Modulation modulation;
    Linear qkv;
    HeadNorms norms;
    Linear output, up, down;
  };
  at::Tensor finish(Stream& stream, const at::Tensor& x, const Activation& attended,
                    const std::vector<at::Tensor>& modulation, const at::Tensor& rows) const;

  SelectiveRecompute policy_;
  ModulatedNorm norm_;
  Kernels kernels_;
  Stream image_, text_;
  JointAttention attention_;
};

class FluxSingleBlock : public Module {
 public:
  // name  canonical: "single_transformer_blocks.0"
  FluxSingleBlock(const LayerContext& context, const std::string& name, const FluxBlockOptions& options);

  // x (b (l + n) / r, h), each sample's text before its picture -> the same shape
  at::Tensor forward(const at::Tensor& x, const at::Tensor& vec, const FluxPass& pass);

 protected:
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  int64_t attention_width_;
  SelectiveRecompute policy_;
  ModulatedNorm norm_;
  Kernels kernels_;
  Modulation modulation_;
  Linear in_;  // [q | k | v | up]
  HeadNorms norms_;
  JointAttention attention_;
  Linear out_;  // of [attention | MLP]
};

}  // namespace megalith
