// FLUX's blocks. Joint blocks have separate weights for picture and text, and attend to both; single blocks read both
// as one sequence, with attention and MLP side by side.
//
// b samples of n picture and l text tokens; vec (b, h) modulates a sample. A rank has n / r picture and l / r text
// tokens of every sample, r being tp under sequence parallelism, else 1; so a single block sees rank 0's text and
// picture, then rank 1's: attention needs only matching angles. Names are diffusers'. Sources: arXiv:2403.03206,
// arXiv:2302.05442 (side by side); Black Forest Labs, FLUX.1.
#pragma once

#include <cstdint>
#include <string>

#include "nn/joint_attention.h"
#include "nn/linear.h"
#include "nn/modulation.h"

namespace megalith {

inline constexpr double kFluxEpsilon = 1e-6;

struct FluxBlockOptions {
  int64_t hidden = 0, ffn = 0, num_heads = 0;
  int64_t layer = 0;

  int64_t head_dim() const { return hidden / num_heads; }
};

struct FluxPass {
  int64_t b = 0, ranks = 1;
  RotaryAngles angles;         // (1, l + n, d / 2)
  RotaryAngles single_angles;  // single blocks' order
  at::Tensor image_rows;       // (b n) int64: keys adapter dropout; undefined: none
  at::Tensor text_rows;        // (b l)
  at::Tensor all_rows;         // (b (l + n)), in single blocks' order
};

class FluxJointBlock : public Module {
 public:
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
  FluxSingleBlock(const LayerContext& context, const std::string& name, const FluxBlockOptions& options);

  // x (b (l + n) / r, h), text first -> same shape
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
  Linear out_;
};

}  // namespace megalith
