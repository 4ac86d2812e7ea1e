// Two encoders against the BERT that each of them is, and the vectors of one for both.
#include "models/biencoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

ModelConfig encoder_config(NormPlacement placement) {
  ModelConfig config;
  config.model_type = ModelType::kBiencoder;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.ffn_hidden_size = 48;
  config.num_attention_heads = 4;
  config.vocab_size = 60;
  config.max_position_embeddings = 16;
  config.norm_placement = placement;
  config.embedding_norm = placement == NormPlacement::kPostLn;
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

ModelConfig bert_of(ModelConfig config) {
  static_cast<RetrievalOptions&>(config) = {};
  config.model_type = ModelType::kBert;
  config.bert_binary_head = false;
  return config;
}

// The tower's weights under a BERT's names.
TensorMap weights_of_tower(const TensorMap& weights, const std::string& tower) {
  TensorMap all;
  for (const auto& [name, tensor] : weights) {
    if (name.starts_with(tower + ".")) all["bert" + name.substr(tower.size())] = tensor;
  }
  return all;
}

const at::Tensor kTokens = at::tensor({5, 9, 14, 3, 0, 0, 7, 7, 50, 22, 31, 2}, at::kLong).view({2, 6});
const at::Tensor kLengths = at::tensor({4, 6}, at::kLong);

ForwardContext context_of_tokens() {
  ForwardContext context;
  context.b = 2;
  context.s = 6;
  context.mask.key_lengths = kLengths;
  context.is_training = false;
  return context;
}

// A BERT's logits are its head's of the hidden states: with the head's weights those of the first tokens follow from
// the vectors.
TEST(Biencoder, AVectorIsTheFirstHiddenStateOfItsBert) {
  const at::NoGradGuard no_grad;
  const Groups groups = Groups::single();
  for (const NormPlacement placement : {NormPlacement::kPre, NormPlacement::kPostLn}) {
    const ModelConfig config = encoder_config(placement), bert_config = bert_of(config);
    const auto model = build_model(config, tiny_context(groups));
    const TensorMap weights = golden_weights(*model, at::kDouble);
    load(*model, weights);
    auto& biencoder = dynamic_cast<Biencoder&>(*model);
    for (const auto& [side, tower] : {std::pair{Biencoder::Side::kQuery, "query_model"},
                                      std::pair{Biencoder::Side::kContext, "context_model"}}) {
      const auto bert = build_model(bert_config, tiny_context(groups));
      TensorMap of_bert = golden_weights(*bert, at::kDouble);
      const TensorMap of_tower = weights_of_tower(weights, tower);
      for (const auto& [name, tensor] : of_tower) {
        ASSERT_TRUE(of_bert.contains(name)) << name;
        of_bert[name] = tensor;
      }
      load(*bert, of_bert);
      ModelInput input{.tokens = kTokens, .labels = {}, .loss_weights = {}, .context = context_of_tokens()};
      const at::Tensor logits = bert->forward(input, {}, HeadOutput::kLogits).logits.select(1, 0);
      const at::Tensor vectors = biencoder.vectors(side, kTokens, context_of_tokens());
      ASSERT_EQ(vectors.sizes(), (std::vector<int64_t>{2, 32}));
      const std::string transform = "cls.predictions.transform.";
      const at::Tensor changed = at::layer_norm(
          at::gelu(at::linear(vectors, of_bert.at(transform + "dense.weight"), of_bert.at(transform + "dense.bias"))),
          {32}, of_bert.at(transform + "LayerNorm.weight"), of_bert.at(transform + "LayerNorm.bias"),
          config.norm_epsilon);
      const at::Tensor expected = at::linear(changed, of_bert.at("bert.embeddings.word_embeddings.weight"),
                                             of_bert.at("cls.predictions.bias"));
      EXPECT_LT((logits - expected).abs().max().item<double>(), 1e-10) << tower;
    }
  }
}

ModelInput pair_input() {
  ModelInput input{.tokens = kTokens, .labels = {}, .loss_weights = {}, .context = context_of_tokens()};
  input.more.set("query_tokens", kTokens.flip({1}).contiguous());
  input.more.set("query_key_lengths", at::tensor({6, 3}, at::kLong));
  input.terms = {{.name = "loss", .per_weight = at::full({}, 0.5, at::kDouble)}};
  return input;
}

TEST(Biencoder, OneEncoderForBothIsTwoWithItsWeights) {
  const at::NoGradGuard no_grad;
  const Groups groups = Groups::single();
  ModelConfig shared = encoder_config(NormPlacement::kPre);
  shared.biencoder_projection_dim = 5;
  shared.retriever_report_topk_accuracies = {1};
  ModelConfig two = shared;
  shared.biencoder_shared_query_context_model = true;
  const auto one_model = build_model(shared, tiny_context(groups)), two_models = build_model(two, tiny_context(groups));
  const TensorMap weights = golden_weights(*one_model, at::kDouble);
  TensorMap of_both;
  for (const auto& [name, tensor] : weights) {
    for (const char* tower : {"query_model", "context_model"}) of_both[tower + name.substr(name.find('.'))] = tensor;
  }
  load(*one_model, weights);
  load(*two_models, of_both);
  EXPECT_EQ(2 * one_model->num_parameters(), two_models->num_parameters());
  const ModelOutput one = one_model->forward(pair_input(), {}, HeadOutput::kLoss);
  const ModelOutput other = two_models->forward(pair_input(), {}, HeadOutput::kLoss);
  ASSERT_EQ(one.terms.size(), 2U);
  EXPECT_EQ(one.terms[0].name, "loss");
  EXPECT_EQ(one.terms[1].name, "top1_acc");
  EXPECT_NEAR(one.terms[0].sum.item<double>(), other.terms[0].sum.item<double>(), 1e-12);
  EXPECT_EQ(one.token_losses.sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(one_model->added_losses(), std::vector<std::string>{"top1_acc"});
  EXPECT_THROW(one_model->forward(pair_input(), {}, HeadOutput::kLogits), UserError);
}

TEST(Biencoder, BlocksHaveTheOrderInWhichTheyRun) {
  const Groups groups = Groups::single();
  const auto model = build_model(encoder_config(NormPlacement::kPre), tiny_context(groups));
  std::set<int64_t> layers;
  std::set<const Module*> modules;
  for (size_t i = 0; i < model->blocks().size(); ++i) {
    const Block& block = model->blocks()[i];
    EXPECT_EQ(block.index, static_cast<int64_t>(i)) << block.name;
    if (block.is_layer) layers.insert(block.layer);
    modules.insert(block.modules.begin(), block.modules.end());
  }
  EXPECT_EQ(layers, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(model->blocks().size(), 9U);  // embedding, two layers, vector; twice; the loss
}

TEST(Biencoder, OnlyDataParallelRanksShareIt) {
  EXPECT_TRUE(check_biencoder_ranks({}).empty());
  EXPECT_EQ(check_biencoder_ranks({.tp = 2, .cp = 2, .pp = 4}).size(), 3U);
}

}  // namespace
}  // namespace megalith
