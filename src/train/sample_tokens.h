// Tokens per sample: two sequences for encoder-decoders, biencoders, and pictures with captions; otherwise one.
#pragma once

#include <cstdint>

#include "nn/module.h"
#include "train/config.h"

namespace megalith {

// A sample for the model's costs: s tokens in the labels' sequence, encoder_s in an encoder's. Without
// decoder_seq_length, which commands without data may lack, both are seq_length.
inline CostShape sample_shape(const Resolved& resolved) {
  const int64_t length = resolved.derived.seq_length;
  // Tokens of a picture and of its caption.
  if (resolved.config.model.is_diffusion()) {
    return {.b = 1, .s = length, .encoder_s = resolved.config.data.flux.text_length};
  }
  if (!resolved.config.model.has_encoder()) return {.b = 1, .s = length, .encoder_s = length};
  return {.b = 1, .s = resolved.config.task.decoder_seq_length.value_or(length), .encoder_s = length};
}

// In both sequences; a biencoder's have equal lengths.
inline int64_t tokens_per_sample(const Resolved& resolved) {
  const CostShape shape = sample_shape(resolved);
  if (resolved.config.model.model_type == ModelType::kBiencoder) return 2 * shape.s;
  const bool has_two = resolved.config.model.has_encoder() || resolved.config.model.is_diffusion();
  return shape.s + (has_two ? shape.encoder_s : 0);
}

}  // namespace megalith
