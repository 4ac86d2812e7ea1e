// A decoder's layer, or an encoder's with its own mask. Some have a convolution for attention.
//
//   pre       stream += attention(norm(stream));         stream += mlp(norm(stream))
//   post      stream += norm(attention(stream));         stream += norm(mlp(stream))
//   sandwich  stream += norm(attention(norm(stream)));   stream += norm(mlp(norm(stream)))
//   post_ln   stream = norm(stream + attention(stream)); stream = norm(stream + mlp(stream))
//
// Sources: arXiv:2002.04745 (pre), 2501.00656 (post), 2105.13290 (sandwich), 1706.03762 (post_ln).
#pragma once

#include <memory>
#include <string>

#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/latent_attention.h"
#include "nn/mlp.h"
#include "nn/moe_layer.h"
#include "nn/norm.h"
#include "nn/short_convolution.h"

namespace megalith {

struct DecoderNames {
  std::string input_norm = "input_layernorm", attention = "self_attn";
  std::string mlp_norm = "post_attention_layernorm", mlp = "mlp";  // empty: directly below the layer
  // The last is for sandwich.
  std::string attention_output_norm = "post_attention_layernorm", mlp_output_norm = "post_feedforward_layernorm";
  std::string sandwiched_mlp_norm = "pre_feedforward_layernorm";
};

struct DecoderSite {
  DecoderNames names = {};
  AttentionNames attention = {};
  MlpNames mlp = {};
  ExpertNames experts = {};
  ConvolutionNames convolution = {};
  bool has_experts = false, has_convolution = false;
  bool is_transposed = false;  // canonical weights are (in, out), as in GPT-2
  double output_init_std = 0.02;
  int64_t layer = 0;
};

class DecoderLayer : public Module {
 public:
  DecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
               const DecoderSite& site);

  const std::string& name() const { return name_; }
  ExpertRouter* router() { return experts_ == nullptr ? nullptr : &experts_->router(); }

  // (t, h) -> (t, h); the next norm adds the last addend.
  ResidualStream forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles);

 private:
  // The stream, normed (and recomputed with SelectiveRecompute::norms) unless norm is null.
  Activation input(Norm* norm, ResidualStream& stream) const;
  ResidualStream forward_normed_sums(const ResidualStream& stream, const ForwardContext& forward,
                                     const RotaryAngles& angles);
  Activation normed_sum(Norm& norm, const at::Tensor& added, const at::Tensor& stream) const;

  std::string name_;
  SelectiveRecompute policy_;
  bool norms_sums_;
  std::unique_ptr<Norm> input_norm_, attention_output_norm_, mlp_norm_, mlp_output_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<FeedForward> mlp_;
  MoeLayer* experts_ = nullptr;
  HiddenDropout mixer_dropout_, mlp_dropout_;
};

}  // namespace megalith
