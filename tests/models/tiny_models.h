// Small models of awkward sizes, and batches for them.
#pragma once

#include <memory>

#include "comm/groups.h"
#include "models/families.h"
#include "models/naive_decoder.h"

namespace megalith::test {

// Two layers, six query heads on two key heads, an odd vocabulary that is padded, heads of 6 channels in a width of 24.
inline ModelConfig tiny_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.ffn_hidden_size = 20;
  config.num_attention_heads = 6;
  config.kv_channels = 6;
  config.group_query_attention = true;
  config.num_query_groups = 2;
  config.vocab_size = 37;
  config.make_vocab_size_divisible_by = 16;
  config.max_position_embeddings = 64;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.rotary_base = 500;
  config.swiglu = true;
  config.normalization = Normalization::kRmsNorm;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

inline LayerContext tiny_context(const Groups& groups, at::ScalarType dtype = at::kDouble,
                                 Kernels kernels = Kernels::kReference) {
  return {.groups = &groups, .dtype = dtype, .kernels = kernels, .seed = 99};
}

inline std::unique_ptr<Model> build_model(const ModelConfig& config, const LayerContext& context) {
  return family_for(config).build_whole(config, context);
}

// Tokens drawn by a fixed rule, a third of the loss weights 0, the others uneven; positions and documents start anew at
// token 4 of the second sequence.
inline NaiveInput tiny_batch(const ModelConfig& config, int64_t b, int64_t s, bool has_documents) {
  NaiveInput input;
  input.tokens = at::empty({b, s}, at::kLong);
  input.labels = at::empty({b, s}, at::kLong);
  input.loss_weights = at::empty({b, s}, at::kDouble);
  input.position_ids = at::arange(s, at::kLong).repeat({b, 1});
  input.row_ids = at::arange(b * s, at::kLong).view({b, s}) + 1000;
  input.seed = 99;
  for (int64_t i = 0; i < b * s; ++i) {
    const auto draw = [&](uint64_t tensor) { return (unit_value(tensor, static_cast<uint64_t>(i)) + 1) / 2; };
    input.tokens.view(-1)[i] = static_cast<int64_t>(draw(100) * static_cast<double>(*config.vocab_size));
    input.labels.view(-1)[i] = static_cast<int64_t>(draw(101) * static_cast<double>(*config.vocab_size));
    input.loss_weights.view(-1)[i] = draw(102) < 1.0 / 3 ? 0.0 : 0.25 * std::ceil(4 * draw(103));
  }
  if (has_documents) {
    input.documents = at::zeros({b, s}, at::kInt);
    input.documents.narrow(1, 4, s - 4).slice(0, 1).fill_(1);
    input.position_ids.narrow(1, 4, s - 4).slice(0, 1).sub_(4);
  }
  return input;
}

inline ModelInput model_input(const NaiveInput& naive, double per_weight = 1) {
  ModelInput input{.tokens = naive.tokens, .labels = naive.labels, .loss_weights = naive.loss_weights.to(at::kFloat)};
  input.context.b = naive.tokens.size(0);
  input.context.s = naive.tokens.size(1);
  input.context.position_ids = naive.position_ids;
  input.context.row_ids = naive.row_ids;
  input.context.is_training = naive.is_training;
  input.context.mask.query_documents = input.context.mask.key_documents = naive.documents;
  input.terms[0].per_weight = at::scalar_tensor(per_weight, at::kDouble);
  return input;
}

}  // namespace megalith::test
