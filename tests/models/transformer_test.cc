// The decoder beyond its gradients: pipeline chunks, generation with a KV cache, evaluation, initial values, bad
// tokens.
#include "models/transformer.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

// The gradients of all parameters of a model cut into these chunks; a parameter's copies are summed.
TensorMap gradients_of_chunks(const ModelConfig& config, const std::vector<UnitRange>& ranges, const TensorMap& weights,
                              const NaiveInput& batch) {
  const Groups groups = Groups::single();
  std::vector<std::unique_ptr<Model>> chunks;
  std::vector<Bundle> sent, received(1);
  const ModelInput input = model_input(batch);
  for (const UnitRange& range : ranges) {
    ModelPart part = ModelPart::whole(model_units(config));
    part.range = range;
    chunks.push_back(family_for(config).build(config, tiny_context(groups), part));
    load(*chunks.back(), weights);
    attach_gradients(*chunks.back());
    ModelOutput output = chunks.back()->forward(input, received.back(), HeadOutput::kLoss);
    if (!output.terms.empty()) output.terms[0].objective.backward();
    sent.push_back(output.boundary);
    received.emplace_back();
    for (const auto& [name, tensor] : sent.back().tensors) {
      received.back().set(name, tensor.detach().set_requires_grad(true));
    }
  }
  EXPECT_TRUE(sent.back().tensors.empty());
  TensorMap gradients;
  for (size_t chunk = chunks.size(); chunk-- > 0;) {
    if (chunk + 1 < chunks.size()) sent[chunk].at("hidden").backward(received[chunk + 1].at("hidden").grad());
    for (const auto& [name, gradient] : gradients_of(*chunks[chunk])) {
      gradients[name] = gradients.contains(name) ? gradients[name] + gradient : gradient;
    }
  }
  return gradients;
}

TEST(Transformer, ChunksInARowGiveTheWholeModelsLossAndGradients) {
  const Groups groups = Groups::single();
  for (const bool is_untied : {true, false}) {
    ModelConfig config = tiny_config();
    config.untie_embeddings_and_output_weights = is_untied;
    const NaiveInput batch = tiny_batch(config, 2, 5, true);
    const auto whole = build_model(config, tiny_context(groups));
    const TensorMap weights = golden_weights(*whole, at::kDouble);
    const TensorMap expected = naive_gradients(config, weights, batch, 1);

    // In two, and a chunk for every unit: embedding, two layers, head.
    for (const std::vector<UnitRange>& ranges :
         {std::vector<UnitRange>{{0, 2}, {2, 2}}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}}) {
      const TensorMap gradients = gradients_of_chunks(config, ranges, weights, batch);
      ASSERT_EQ(gradients.size(), expected.size());
      for (const auto& [name, gradient] : expected) {
        EXPECT_LT(relative_difference(gradients.at(name), gradient), 1e-9) << name;
      }
    }
  }
}

// A head finds the table where the rank has it, and then there is one Parameter; otherwise it holds a copy.
TEST(Transformer, AChunkUsesTheParametersThatItsRankHas) {
  ModelConfig config = tiny_config();
  config.untie_embeddings_and_output_weights = false;
  config.mtp_num_layers = 1;
  const Groups groups = Groups::single();
  ModelPart part = ModelPart::whole(model_units(config));
  const int64_t end = part.range.end();
  part.range = {0, 1};
  const auto embedding = family_for(config).build(config, tiny_context(groups), part);
  ASSERT_EQ(embedding->parameters().size(), 1u);
  Parameter* table = embedding->parameters()[0];
  const auto tables_of_end = [&] {
    part.range = {end - 2, 2};  // the prediction module and the head
    const auto model = family_for(config).build(config, tiny_context(groups), part);
    int64_t count = 0;
    model->for_each_parameter([&](Parameter& one) { count += one.name() == table->name(); });
    return count;
  };
  EXPECT_EQ(tables_of_end(), 1);
  part.found = {{table->name(), table}};
  EXPECT_EQ(tables_of_end(), 0);
  // A prediction module without the head cannot compute its loss.
  part.range = {end - 2, 1};
  EXPECT_THROW(family_for(config).build(config, tiny_context(groups), part), InternalError);
}

TEST(Transformer, GenerationWithACacheGivesTheLogitsOfTheFullForward) {
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.add_qkv_bias = config.qk_layernorm = true;
  const auto model = build_model(config, tiny_context(groups));
  load(*model, golden_weights(*model, at::kDouble));
  const int64_t b = 2, s = 9;
  const NaiveInput batch = tiny_batch(config, b, s, false);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = model->forward(model_input(batch), {}, HeadOutput::kLogits).logits;
  EXPECT_LT(relative_difference(expected, naive_logits(config, values_of(*model), batch)), 1e-10);

  KvCache cache{.capacity = 11};
  int64_t from = 0;
  for (const int64_t length : {4, 1, 1, 3}) {  // a prompt, two tokens, three at once
    ModelInput input{.tokens = batch.tokens.narrow(1, from, length)};
    input.context.b = b;
    input.context.s = length;
    input.context.is_training = false;
    input.context.cache = &cache;
    const at::Tensor all = model->forward(input, {}, HeadOutput::kLogits).logits;
    EXPECT_LT(relative_difference(all, expected.narrow(1, from, length)), 1e-10) << from;
    const at::Tensor last = model->forward(input, {}, HeadOutput::kLastLogits).logits;
    EXPECT_LT(relative_difference(last, expected.narrow(1, from + length - 1, 1)), 1e-10) << from;
    cache.length += length;
    from += length;
  }
  ModelInput beyond{.tokens = batch.tokens.narrow(1, 0, 3)};
  beyond.context.b = b;
  beyond.context.s = 3;
  beyond.context.cache = &cache;
  EXPECT_THROW(model->forward(beyond, {}, HeadOutput::kLogits), InternalError);
}

TEST(Transformer, TensorParallelLogitsAndTokenLossesAreThoseOfOneRank) {
  const ModelConfig config = tiny_config();
  const NaiveInput batch = tiny_batch(config, 2, 6, false);
  const Groups single = Groups::single();
  const auto one = build_model(config, tiny_context(single));
  const TensorMap weights = golden_weights(*one, at::kDouble);
  const at::Tensor expected = naive_logits(config, weights, batch);
  const at::Tensor expected_losses = naive_token_losses(config, weights, batch);
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    for (const bool is_sequence_parallel : {false, true}) {
      LayerContext context = tiny_context(groups);
      context.is_sequence_parallel = is_sequence_parallel;
      const auto model = build_model(config, context);
      load(*model, weights);
      ModelInput input = model_input(batch);
      EXPECT_LT(relative_difference(model->forward(input, {}, HeadOutput::kLogits).logits, expected), 1e-10);
      EXPECT_LT(
          relative_difference(model->forward(input, {}, HeadOutput::kLastLogits).logits, expected.narrow(1, 5, 1)),
          1e-10);
      input.loss_weights = at::Tensor();
      EXPECT_LT(relative_difference(model->forward(input, {}, HeadOutput::kTokenLosses).token_losses, expected_losses),
                1e-10);
    }
  });
}

TEST(Transformer, EvaluationNeedsNoGradientBuffersAndDropsNothing) {
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.hidden_dropout = config.attention_dropout = 0.5;
  const auto model = build_model(config, tiny_context(groups));
  const TensorMap weights = golden_weights(*model, at::kDouble);
  load(*model, weights);
  NaiveInput batch = tiny_batch(config, 2, 5, false);
  batch.is_training = false;
  const at::NoGradGuard no_grad;
  const ModelOutput output = model->forward(model_input(batch), {}, HeadOutput::kLoss);
  EXPECT_FALSE(output.terms[0].objective.requires_grad());
  const at::Tensor losses = naive_token_losses(config, weights, batch);
  EXPECT_NEAR(output.terms[0].sum.item<double>(), (losses * batch.loss_weights).sum().item<double>(), 1e-9);
}

TEST(Transformer, InitialValuesDoNotDependOnTheLayout) {
  ModelConfig config = tiny_config();
  config.add_qkv_bias = true;
  const Groups single = Groups::single();
  const auto one = build_model(config, tiny_context(single, at::kBFloat16));
  one->for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
  const TensorMap expected = values_of(*one);

  std::vector<TensorMap> parts(2);
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    const auto model = build_model(config, tiny_context(groups, at::kBFloat16));
    model->for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
    parts[static_cast<size_t>(groups.tp->rank())] = values_of(*model);
  });
  for (const auto& [name, value] : expected) {
    const at::Tensor merged = at::where(parts[0].at(name).isnan(), parts[1].at(name), parts[0].at(name));
    EXPECT_TRUE(at::equal(merged, value)) << name;
  }

  // The rules of the first values: norms 1, biases 0, output projections smaller by sqrt(2 L).
  const auto spread = [&](const std::string& name) { return expected.at(name).to(at::kDouble).std().item<double>(); };
  EXPECT_EQ(expected.at("model.norm.weight").min().item<double>(), 1);
  EXPECT_EQ(expected.at("model.layers.0.self_attn.q_proj.bias").abs().max().item<double>(), 0);
  // 480 to 888 samples: the deviation's own deviation is at most 3.3 %; four of those.
  EXPECT_NEAR(spread("model.layers.1.mlp.gate_proj.weight"), 0.02, 0.13 * 0.02);
  EXPECT_NEAR(spread("model.layers.1.mlp.down_proj.weight"), 0.01, 0.13 * 0.01);
  EXPECT_NEAR(spread("model.layers.0.self_attn.o_proj.weight"), 0.01, 0.13 * 0.01);
  EXPECT_NEAR(spread("model.embed_tokens.weight"), 0.02, 0.13 * 0.02);
}

TEST(Transformer, CanonicalNamesAreThoseOfHuggingFace) {
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.num_layers = 1;
  config.add_qkv_bias = true;
  const auto names_of = [&] {
    std::map<std::string, std::vector<int64_t>> shapes;
    build_model(config, tiny_context(groups))->for_each_parameter([&](Parameter& parameter) {
      for (const Piece& piece : parameter.placement().pieces) shapes[piece.name] = piece.shape;
    });
    return shapes;
  };
  std::map<std::string, std::vector<int64_t>> expected = {
      {"lm_head.weight", {37, 24}},
      {"model.embed_tokens.weight", {37, 24}},
      {"model.layers.0.input_layernorm.weight", {24}},
      {"model.layers.0.mlp.down_proj.weight", {24, 20}},
      {"model.layers.0.mlp.gate_proj.weight", {20, 24}},
      {"model.layers.0.mlp.up_proj.weight", {20, 24}},
      {"model.layers.0.post_attention_layernorm.weight", {24}},
      {"model.layers.0.self_attn.k_proj.bias", {12}},
      {"model.layers.0.self_attn.k_proj.weight", {12, 24}},
      {"model.layers.0.self_attn.o_proj.weight", {24, 36}},
      {"model.layers.0.self_attn.q_proj.bias", {36}},
      {"model.layers.0.self_attn.q_proj.weight", {36, 24}},
      {"model.layers.0.self_attn.v_proj.bias", {12}},
      {"model.layers.0.self_attn.v_proj.weight", {12, 24}},
      {"model.norm.weight", {24}},
  };
  EXPECT_EQ(names_of(), expected);
  config.untie_embeddings_and_output_weights = false;
  expected.erase("lm_head.weight");
  EXPECT_EQ(names_of(), expected);
}

// Roles by which optimizers tell parameters apart, in a model with experts and one with learned positions.
TEST(Transformer, EveryParameterSaysWhatItIs) {
  const auto expected = [](const Parameter& parameter) {
    const std::string& name = parameter.name();
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (parameter.placement().local_shape.size() == 1) return ParameterRole::kVector;
    if (has("embed_tokens") || has("wte") || has("wpe")) return ParameterRole::kEmbedding;
    if (has("lm_head")) return ParameterRole::kHead;
    if (has("qkv_proj")) return ParameterRole::kQkv;
    if (has("gate.weight") && !has("experts")) return ParameterRole::kRouter;
    return ParameterRole::kMatrix;
  };
  ModelConfig experts = tiny_config();
  experts.num_experts = 4;
  experts.moe_router_topk = 2;
  ModelConfig gpt2;
  gpt2.num_layers = 1;
  gpt2.ffn_hidden_size = gpt2.hidden_size = 12;
  gpt2.num_attention_heads = 4;
  gpt2.vocab_size = 37;
  gpt2.max_position_embeddings = 16;
  std::map<ParameterRole, int> seen;
  const Groups groups = Groups::single();
  for (const ModelConfig& config : {tiny_config(), experts, gpt2}) {
    const auto model = build_model(config, tiny_context(groups));
    for (const Parameter* parameter : model->parameters()) {
      EXPECT_EQ(parameter->options().role, expected(*parameter)) << parameter->name();
      ++seen[parameter->options().role];
    }
  }
  EXPECT_EQ(seen.size(), 6u);  // every role there is
}

// The last stage's copy of a tied embedding is an embedding as the first stage's is, or they would move apart.
TEST(Transformer, ATiedHeadOfAPipelineIsAnEmbedding) {
  ModelConfig config = tiny_config();
  config.untie_embeddings_and_output_weights = false;
  const Groups groups = Groups::single();
  ModelPart last = ModelPart::whole(model_units(config));
  last.range = {2, 2};
  last.copied = {{"model.embed_tokens.weight", {0, 1}}};
  const auto model = family_for(config).build(config, tiny_context(groups), last);
  int num_tables = 0;
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->name().find("embed_tokens") == std::string::npos) continue;
    EXPECT_EQ(parameter->options().role, ParameterRole::kEmbedding);
    ++num_tables;
  }
  EXPECT_EQ(num_tables, 1);
}

TEST(Transformer, TokensOutsideTheVocabularyAreRefused) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config();
  const auto model = build_model(config, tiny_context(groups));
  NaiveInput batch = tiny_batch(config, 1, 4, false);
  batch.tokens[0][2] = 37;  // a padding row
  EXPECT_THROW(model->forward(model_input(batch), {}, HeadOutput::kLoss), UserError);
}

TEST(Transformer, LayoutsThatDoNotDivideAreRefused) {
  ThreadWorld(3).run(Mesh({.tp = 3}), [](Groups& groups) {
    EXPECT_THROW(build_model(tiny_config(), tiny_context(groups)), UserError);  // 2 key heads over 3 ranks
  });
  ThreadWorld(2).run(Mesh({.tp = 2}), [](Groups& groups) {
    LayerContext context = tiny_context(groups);
    context.is_sequence_parallel = true;
    const auto model = build_model(tiny_config(), context);
    EXPECT_THROW(model->forward(model_input(tiny_batch(tiny_config(), 1, 5, false)), {}, HeadOutput::kLoss), UserError);
  });
}

}  // namespace
}  // namespace megalith
