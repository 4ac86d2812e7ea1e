// How many tokens a sample has: of an encoder and decoder, of a biencoder, and of a picture with its caption in two
// sequences, otherwise in one.
#pragma once

#include <cstdint>

#include "nn/module.h"
#include "train/config.h"

namespace megalith {

// A sample as the model's costs see it: s tokens in the sequence of the labels, encoder_s in the one that an encoder
// beside it reads. Without decoder_seq_length, which a command without data need not have, both are seq_length long.
inline CostShape sample_shape(const Resolved& resolved) {
  const int64_t length = resolved.derived.seq_length;
  // A picture's tokens, and its caption's.
  if (resolved.config.model.is_diffusion()) {
    return {.b = 1, .s = length, .encoder_s = resolved.config.data.flux.text_length};
  }
  if (!resolved.config.model.has_encoder()) return {.b = 1, .s = length, .encoder_s = length};
  return {.b = 1, .s = resolved.config.task.decoder_seq_length.value_or(length), .encoder_s = length};
}

// In both sequences; a biencoder's are as long as one another.
inline int64_t tokens_per_sample(const Resolved& resolved) {
  const CostShape shape = sample_shape(resolved);
  if (resolved.config.model.model_type == ModelType::kBiencoder) return 2 * shape.s;
  const bool has_two = resolved.config.model.has_encoder() || resolved.config.model.is_diffusion();
  return shape.s + (has_two ? shape.encoder_s : 0);
}

}  // namespace megalith
