// An independent encoder and decoder, written from the published formulas in plain differentiable ATen, whole tensors
// by canonical name: what the models are compared with. It shares nothing with the program; without dropout.
#pragma once

#include "models/model.h"
#include "support/module_tools.h"

namespace megalith::test {

struct NaivePair {
  at::Tensor encoder_tokens, encoder_lengths;  // (b, S), (b)
  at::Tensor tokens, lengths, labels;          // (b, s), (b), (b, s)
  at::Tensor loss_weights;                     // (b, s) wide
};

// A fixed batch whose sequences have padding in the encoder and in the decoder.
NaivePair tiny_pair(const ModelConfig& config, int64_t b, int64_t encoder_s, int64_t s);
ModelInput pair_model_input(const NaivePair& pair);

at::Tensor naive_memory(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair);       // (b, S, h)
at::Tensor naive_pair_logits(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair);  // (b, s, v)

// Gradients of the sum of weight * loss with respect to every weight.
TensorMap naive_pair_gradients(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair,
                               double* loss_sum = nullptr);

}  // namespace megalith::test
