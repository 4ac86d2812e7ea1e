// The two kinds of blocks of FLUX.
//
// A joint block keeps picture and text apart: each has norms, projections and an MLP of its own, and attends to both.
// A single block reads text and picture as one sequence, and computes attention and MLP side by side.
//
// b samples of n tokens of the picture and l of the text; h channels; vec (b, h) of a sample modulates everything.
//
// Under sequence parallelism each of r tp ranks has a share of every sample: n / r tokens of its picture and l / r of
// its text. The tokens of all ranks, where a block has them, are sorted by rank, then by sample. A single block sees
// the tokens of a sample in that order: rank 0's text and picture, then rank 1's. Attention has no order of its own,
// so only the angles must follow. Else r is 1.
// Sources: Esser et al. 2024, arXiv:2403.03206; Dehghani et al. 2023, arXiv:2302.05442 (side by side); Black Forest
// Labs, FLUX.1. Names are those of diffusers.
#pragma once

#include <cstdint>
#include <string>

#include "nn/joint_attention.h"
#include "nn/linear.h"
#include "nn/modulation.h"

namespace megalith {

inline constexpr double kFluxEpsilon = 1e-6;  // of all its norms

struct FluxBlockOptions {
  int64_t hidden = 0, ffn = 0, num_heads = 0;  // of the whole
  int64_t layer = 0;                           // number in the whole model

  int64_t head_dim() const { return hidden / num_heads; }
};

// What a block's passes share.
struct FluxPass {
  int64_t b = 0, ranks = 1;
  RotaryAngles angles;         // of text and picture, (1, l + n, d / 2)
  RotaryAngles single_angles;  // the same in a single block's order
  at::Tensor image_rows;       // (b n) int64: numbers of the tokens, for the dropout of adapters; undefined: none
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
  // What a stream has for itself.
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
  // The stream behind attention and MLP.
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

  // x (b (l + n) / r, h), a sample's text in front of its picture -> alike
  at::Tensor forward(const at::Tensor& x, const at::Tensor& vec, const FluxPass& pass);

 protected:
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  int64_t attention_width_;  // of this rank's heads
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
