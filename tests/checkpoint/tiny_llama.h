// A Llama of two layers for the readers and writers of checkpoints: four heads on two key heads, sizes that are all
// different, a vocabulary that is padded.
#pragma once

#include <memory>

#include "models/tiny_models.h"

namespace megalith::test {

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_config();
  config.num_attention_heads = 4;
  config.kv_channels.reset();
  config.make_vocab_size_divisible_by = 8;
  config.rotary_base = RotaryOptions().rotary_base;
  return config;
}

// The whole model, with a number in all parameters that no weight has: what is not loaded is seen.
inline std::unique_ptr<Model> unloaded_model(const ModelConfig& config, const Groups& groups,
                                             at::ScalarType dtype = at::kFloat) {
  auto model = family_for(config).build_whole(config, {.groups = &groups, .dtype = dtype});
  for (Parameter* parameter : model->parameters()) parameter->data().fill_(-99);
  return model;
}

}  // namespace megalith::test
