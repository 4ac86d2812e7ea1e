// Multi-token prediction: modules after the last layer. The k-th predicts k tokens further than the model, with its
// embedding and head.
//
//   u_k = eh_proj [enorm(embedding(token t + k)) | hnorm(H_{k-1}[t])]    H_0 the decoder's output after its final norm
//   H_k = norm(layer(u_k))
//   term k:  factor / M * sum of weight * cross entropy(head(H_k)[t], token t + k + 1)
//
// Terms are normalised as the model's loss, by the global batch's valid tokens (Megatron-LM's with
// calculate_per_token_loss). Weights roll left with the labels: a sequence's last k tokens have none.
// Source: DeepSeek-AI 2024, arXiv:2412.19437, §2.2; Gloeckle et al. 2024, arXiv:2404.19737.
#pragma once

#include <string>

#include "models/transformer_names.h"

namespace megalith {

class PredictionModule : public Module {
 public:
  // depth  k, from 1; canonical names begin "model.layers.<num_layers + k - 1>"
  PredictionModule(const LayerContext& context, const ModelConfig& config, const TransformerNames& names,
                   int64_t depth);

  // hidden and embedded (t, h), or this rank's t / tp rows under sequence parallelism -> H_k, alike
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& embedded, const ForwardContext& forward,
                     const RotaryAngles& angles);

  const std::string& loss_name() const { return loss_name_; }  // "mtp_1 loss"
  int64_t layer() const { return layer_; }
  ExpertRouter* router() { return block_.router(); }

 private:
  int64_t layer_;
  std::string loss_name_;
  Norm embedding_norm_, hidden_norm_;
  Linear projection_;
  DecoderLayer block_;
  Norm final_norm_;
};

// x (b, s) shifted left by one within sequences; the last token of each sequence and document gets `fill`, so none
// predicts across documents. If cp ranks share sequences, x is this rank's part.
at::Tensor rolled_left(const at::Tensor& x, double fill, const ForwardContext& forward, Group& cp);

}  // namespace megalith
