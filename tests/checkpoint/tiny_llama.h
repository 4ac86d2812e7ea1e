// A Llama of two layers for the readers and writers of checkpoints: four heads on two key heads, sizes that are all
// different, a vocabulary that is padded.
#pragma once

#include <memory>

#include "comm/groups.h"
#include "models/families.h"

namespace megalith::test {

inline ModelConfig tiny_llama() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.ffn_hidden_size = 20;
  config.num_attention_heads = 4;
  config.group_query_attention = true;
  config.num_query_groups = 2;
  config.vocab_size = 37;
  config.make_vocab_size_divisible_by = 8;
  config.max_position_embeddings = 64;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.swiglu = true;
  config.normalization = Normalization::kRmsNorm;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  config.attention_dropout = config.hidden_dropout = 0;
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
