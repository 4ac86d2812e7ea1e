// An independent decoder, written from the published formulas in plain differentiable ATen, whole tensors by canonical
// name: what the models are compared with. Slow, obvious, and shares with the program only the rotary angles' table
// (tested against transformers) and the Philox words of dropout.
#pragma once

#include "models/model.h"
#include "support/module_tools.h"

namespace megalith::test {

struct NaiveInput {
  at::Tensor tokens, labels;  // (b, s) int64
  at::Tensor loss_weights;    // (b, s) wide
  at::Tensor position_ids;    // (b, s) int64
  at::Tensor documents;       // (b, s) int32 or undefined
  at::Tensor row_ids;         // (b, s) int64, with dropout
  uint64_t seed = 1234;
  bool is_training = true;
};

at::Tensor naive_logits(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input);  // (b, s, v)

// Per-token losses (b, s), and sum over tokens of weight * loss.
at::Tensor naive_token_losses(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input);

// For each prediction module in order: the sum over tokens of weight * loss, with labels and weights shifted by the
// module's depth, which counts from 1.
std::vector<at::Tensor> naive_prediction_losses(const ModelConfig& config, const TensorMap& weights,
                                                const NaiveInput& input);

// Gradients of scale * sum of weight * loss, and of the prediction modules' terms, with respect to every weight.
TensorMap naive_gradients(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input, double scale,
                          double* loss_sum = nullptr);

}  // namespace megalith::test
