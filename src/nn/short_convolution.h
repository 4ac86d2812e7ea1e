// A gated short convolution, causal and by channel, where other layers have attention:
//
//   B, C, x = W_in h                                    c channels each
//   u = B * x;    v[t] = sum over j < L of w[j] u[t - L + 1 + j] (+ bias)
//   y = W_out (C * v)
//
// tp divides the channels: a rank has its own of B, C and x. Where documents hide each other from attention, u of
// another document counts as zero, so that a packed document is computed as by itself. cp ranks gather the last L - 1
// tokens of all chunks of the zig-zag (comm/sequence_shard.h). Decoding keeps the last L - 1 tokens of u.
//
// Source: Liquid AI 2025, arXiv:2511.23404 (LFM2).
#pragma once

#include <string>

#include "nn/layer_options.h"
#include "nn/layer_parts.h"

namespace megalith {

struct ConvolutionNames {
  std::string layer = "conv";  // instead of self_attn
  std::string in = "in_proj", kernel = "conv", output = "out_proj";
};

struct ConvolutionSite {
  ConvolutionNames names = {};
  double output_init_std = 0.02;
  int64_t layer = 0;  // also the cache's slot
};

class ShortConvolution : public Mixer {
 public:
  ShortConvolution(const LayerContext& context, const std::string& name, const LayerOptions& options,
                   const ConvolutionSite& site);

  // angles: not read.
  at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) override;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  friend struct ShortConvolutionFunction;

  // The u of the tokens in front of each run of consecutive ones: (b, runs, L - 1, c), zero where a sequence begins.
  at::Tensor before_runs(const at::Tensor& u, bool is_shared) const;
  // Adds the gradient of before_runs() to that of u.
  void add_gradient_before(const at::Tensor& du, const at::Tensor& dbefore, bool is_shared) const;
  at::Tensor before_cached(const at::Tensor& u, const ForwardContext& forward) const;
  Parameter& add_kernel(const LayerContext& context, const std::string& name, std::vector<int64_t> shape,
                        const Init& init);

  std::string name_;
  int64_t channels_, length_, layer_;  // channels on this rank, L
  Group* cp_;
  Linear in_, output_;
  Parameter* kernel_;          // (c, 1, L)
  Parameter* bias_ = nullptr;  // (c)
};

}  // namespace megalith
