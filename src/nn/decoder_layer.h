// One layer of a decoder, or of an encoder with its own mask. The MLP may be a mixture of experts, attention latent.
//
//   pre       stream += attention(norm(stream));         stream += mlp(norm(stream))
//   post      stream += norm(attention(stream));         stream += norm(mlp(stream))
//   sandwich  stream += norm(attention(norm(stream)));   stream += norm(mlp(norm(stream)))
//   post_ln   stream = norm(stream + attention(stream)); stream = norm(stream + mlp(stream))
//
// Source: Xiong et al. 2020, arXiv:2002.04745 (pre); OLMo team 2024, arXiv:2501.00656 (post); Ding et al. 2021,
// arXiv:2105.13290 (sandwich); Vaswani et al. 2017, arXiv:1706.03762 (post_ln).
#pragma once

#include <memory>
#include <string>

#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/latent_attention.h"
#include "nn/mlp.h"
#include "nn/moe_layer.h"
#include "nn/norm.h"

namespace megalith {

struct DecoderNames {
  std::string input_norm = "input_layernorm", attention = "self_attn";
  std::string mlp_norm = "post_attention_layernorm", mlp = "mlp";  // empty mlp: its linears are directly below the
                                                                   // layer
  // The last is used beside the other two.
  std::string attention_output_norm = "post_attention_layernorm", mlp_output_norm = "post_feedforward_layernorm";
  std::string sandwiched_mlp_norm = "pre_feedforward_layernorm";
};

struct DecoderSite {
  DecoderNames names = {};
  AttentionNames attention = {};
  MlpNames mlp = {};
  ExpertNames experts = {};
  bool has_experts = false;
  bool is_transposed = false;  // canonical weights of attention and the MLP are (in, out), as in GPT-2
  double output_init_std = 0.02;
  int64_t layer = 0;  // index in the whole model
};

class DecoderLayer : public Module {
 public:
  // name  canonical: "model.layers.0", with DecoderSite::names below it
  // Attention is latent with multi_latent_attention. UserError as for the parts.
  DecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
               const DecoderSite& site);

  const std::string& name() const { return name_; }
  ExpertRouter* router() { return experts_ == nullptr ? nullptr : &experts_->router(); }

  // stream (t, h) -> (t, h); the last block's addend is left to the next norm.
  ResidualStream forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles);

 private:
  // The norm of the stream (recomputed with SelectiveRecompute::norms), or the stream.
  Activation input(Norm* norm, ResidualStream& stream) const;
  ResidualStream forward_normed_sums(const ResidualStream& stream, const ForwardContext& forward,
                                     const RotaryAngles& angles);
  Activation normed_sum(Norm& norm, const at::Tensor& added, const at::Tensor& stream) const;

  std::string name_;
  SelectiveRecompute policy_;
  bool norms_sums_;
  // Null where NormPlacement has none.
  std::unique_ptr<Norm> input_norm_, attention_output_norm_, mlp_norm_, mlp_output_norm_;
  std::unique_ptr<AttentionLayer> attention_;
  std::unique_ptr<FeedForward> mlp_;
  MoeLayer* experts_ = nullptr;
  HiddenDropout attention_dropout_, mlp_dropout_;
};

}  // namespace megalith
