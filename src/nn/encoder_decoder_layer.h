// A decoder's layer that also attends to an encoder's output:
//
//   stream += attention(norm(stream));   stream += cross_attention(norm(stream), memory);   stream += mlp(norm(stream))
//
// Sources: arXiv:1706.03762; pre-norm: arXiv:1910.10683.
#pragma once

#include <memory>
#include <string>

#include "nn/attention.h"
#include "nn/cross_attention.h"
#include "nn/dropout.h"
#include "nn/mlp.h"
#include "nn/moe_layer.h"
#include "nn/norm.h"

namespace megalith {

struct CrossDecoderNames {
  std::string attention_norm, attention, cross_norm, cross_attention, mlp_norm, mlp;
};

struct CrossDecoderSite {
  CrossDecoderNames names;
  AttentionNames attention = {};  // of both
  MlpNames linears = {};
  ExpertNames experts = {};
  bool has_experts = false;
  double output_init_std = 0.02;
  int64_t layer = 0;
};

class CrossDecoderLayer : public Module {
 public:
  // name  canonical: "decoder.block.0"
  CrossDecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                    const CrossDecoderSite& site);

  ExpertRouter* router() { return experts_ == nullptr ? nullptr : &experts_->router(); }

  // stream (t, h) -> (t, h); the next norm adds the last addend. Differentiable in stream, memory.hidden and
  // forward.mask.bias, which only self-attention reads.
  ResidualStream forward(ResidualStream stream, const EncoderMemory& memory, const ForwardContext& forward);

 private:
  Activation normed(Norm& norm, ResidualStream& stream) const;

  SelectiveRecompute policy_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm cross_norm_;
  CrossAttention cross_;
  Norm mlp_norm_;
  std::unique_ptr<FeedForward> mlp_;
  MoeLayer* experts_ = nullptr;
  HiddenDropout attention_dropout_, cross_dropout_, mlp_dropout_;
};

}  // namespace megalith
