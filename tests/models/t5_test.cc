// T5: numbers of transformers, every gradient, chunks of a pipeline, tensor parallelism and generation with a cache.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include "comm/thread_world.h"
#include "models/architecture.h"
#include "models/encoder_decoder.h"
#include "models/families.h"
#include "models/naive_encoder_decoder.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

// More layers in the decoder; buckets that are shared within the few tokens.
ModelConfig tiny_t5() {
  ModelConfig config = tiny_config();
  config.model_type = ModelType::kT5;
  config.rotary_base = RotaryOptions().rotary_base;
  config.decoder_num_layers = 3;
  config.group_query_attention = false;
  config.position_embedding_type = PositionEmbedding::kRelative;
  config.relative_attention_num_buckets = 8;
  config.relative_attention_max_distance = 6;
  config.query_pre_attn_scalar = 1;
  config.swiglu = false;
  config.relu = true;
  config.untie_embeddings_and_output_weights = false;
  config.scale_decoder_outputs = true;
  return config;
}

ModelConfig tiny_t5_v1_1() {
  ModelConfig config = tiny_t5();
  config.relu = config.scale_decoder_outputs = false;
  config.geglu = config.untie_embeddings_and_output_weights = true;
  return config;
}

// As Megatron-LM has it.
ModelConfig tiny_megatron_t5() {
  ModelConfig config = tiny_t5();
  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  config.relative_attention_num_buckets = 32;
  config.relative_attention_max_distance = 128;
  config.normalization = Normalization::kLayerNorm;
  config.relu = config.scale_decoder_outputs = false;
  config.bias_gelu_fusion = config.add_bias_linear = true;
  config.query_pre_attn_scalar.reset();
  return config;
}

// In every other layer of both stacks together: the first of each.
ModelConfig with_experts(ModelConfig config) {
  config.num_experts = 4;
  config.moe_ffn_hidden_size = 12;
  config.moe_router_topk = 2;
  config.moe_layer_freq = "2";
  config.moe_aux_loss_coeff = 0;
  return config;
}

ModelConfig golden_t5(ModelConfig config) {
  config.decoder_num_layers.reset();
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.num_attention_heads = 4;
  config.kv_channels = 16;
  config.vocab_size = 128;
  config.norm_epsilon = 1e-6;
  config.relative_attention_num_buckets = 32;
  config.relative_attention_max_distance = 128;
  return config;
}

TEST(T5, LogitsAndMemoryAreThoseOfTransformers) {
  const Groups groups = Groups::single();
  const at::NoGradGuard no_grad;
  struct GoldenT5 {
    ModelConfig config;
    std::vector<double> last_logits, memory;
  };
  const std::vector<GoldenT5> all = {
      {golden_t5(tiny_t5()), {-.00307918, -.0852195, .216122, .198831}, {-.716022, -.772518, -.6827}},
      {golden_t5(tiny_t5_v1_1()), {.416305, -.313702, -.0214812, -1.46096}, {.485574, -.388233, -1.00951}}};
  for (const GoldenT5& golden : all) {
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      EXPECT_EQ(family_for(golden.config).name, "t5");
      const auto model = build_model(golden.config, tiny_context(groups, at::kFloat, kernels));
      const TensorMap weights = golden_weights(*model, at::kFloat);
      load(*model, weights);
      ModelInput input{.tokens = at::tensor({0, 7, 8, 9}, at::kLong).view({1, 4})};
      input.context.b = 1;
      input.context.s = 4;
      input.context.encoder_s = 8;
      input.more.set("encoder_tokens", at::tensor({3, 14, 15, 92, 65, 35, 89, 79}, at::kLong).view({1, 8}));
      const at::Tensor logits = model->forward(input, {}, HeadOutput::kLogits).logits;
      // Six digits are printed; float32 sums of 64 terms add about 1e-6.
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(logits[0][3][static_cast<int64_t>(i)].item<double>(), golden.last_logits[i], 2e-5) << i;
      }
      ModelPart part = ModelPart::whole(model_units(golden.config));
      part.range = {0, 1 + golden.config.num_layers + 1};
      const auto encoder = family_for(golden.config).build(golden.config, tiny_context(groups, at::kFloat), part);
      load(*encoder, weights);
      const at::Tensor memory = encoder->forward(input, {}, HeadOutput::kLogits).boundary.at("memory");
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(memory[0][static_cast<int64_t>(i)].item<double>(), golden.memory[i], 2e-5) << i;
      }
    }
  }
}

std::vector<std::pair<std::string, ModelConfig>> t5_cases() {
  std::vector<std::pair<std::string, ModelConfig>> list = {{"v1.0", tiny_t5()}, {"v1.1", tiny_t5_v1_1()}};
  ModelConfig grouped = tiny_t5_v1_1();
  grouped.group_query_attention = true;  // three query heads share keys, in all three kinds of attention
  grouped.query_pre_attn_scalar.reset();
  list.emplace_back("grouped heads, scaled scores", grouped);
  ModelConfig unplaced = tiny_t5();
  unplaced.position_embedding_type = PositionEmbedding::kNone;
  list.emplace_back("no positions", unplaced);
  list.emplace_back("Megatron-LM's", tiny_megatron_t5());
  ModelConfig exact = tiny_megatron_t5();
  exact.position_embedding_type = PositionEmbedding::kRelative;
  exact.bias_gelu_fusion = false;
  exact.untie_embeddings_and_output_weights = true;
  list.emplace_back("Megatron-LM's with relative positions, untied", exact);
  list.emplace_back("experts", with_experts(tiny_t5_v1_1()));
  list.emplace_back("Megatron-LM's with experts", with_experts(tiny_megatron_t5()));
  return list;
}

// One vector on all keys changes no softmax: the gradient of their biases is rounding, small beside the others'.
void expect_gradients(const TensorMap& actual, const TensorMap& expected, double tolerance, std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const auto& [key, gradient] : expected) largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [key, gradient] : expected) {
    if (key.ends_with(".k.bias")) {
      EXPECT_LT(actual.at(key).abs().max().item<double>(), tolerance * largest) << what << " " << key;
      continue;
    }
    const bool is_idle = gradient.abs().max().item<double>() == 0;
    EXPECT_TRUE(!is_idle || key.find(".experts.") != std::string::npos) << what << " " << key;
    EXPECT_LT(relative_difference(actual.at(key), gradient), tolerance) << what << " " << key;
  }
}

TEST(T5, LossAndEveryGradientAreTheNaiveModels) {
  const Groups groups = Groups::single();
  for (const auto& [name, config] : t5_cases()) {
    const NaivePair pair = tiny_pair(config, 3, 7, 5);
    // float32 rounds at 6e-8; products of some tens of terms through a few layers add up to some 1e-5 of the largest.
    const std::vector<std::tuple<at::ScalarType, Kernels, double>> forms = {{at::kDouble, Kernels::kReference, 1e-10},
                                                                            {at::kDouble, Kernels::kFused, 1e-10},
                                                                            {at::kFloat, Kernels::kFused, 1e-4}};
    for (const auto& [dtype, kernels, tolerance] : forms) {
      const auto model = build_model(config, tiny_context(groups, dtype, kernels));
      const TensorMap weights = golden_weights(*model, at::kDouble);
      double expected_loss = 0;
      const TensorMap expected = naive_pair_gradients(config, weights, pair, &expected_loss);
      load(*model, weights);
      attach_gradients(*model);
      const ModelOutput output = model->forward(pair_model_input(pair), {}, HeadOutput::kLoss);
      EXPECT_NEAR(output.terms.at(0).sum.item<double>(), expected_loss, tolerance * expected_loss) << name;
      output.terms[0].objective.backward();
      const TensorMap gradients = gradients_of(*model);
      expect_gradients(gradients, expected, tolerance, name);
    }
  }
}

// A chunk for every unit that may end a stage: what travels and comes back is hidden, memory, or both.
TEST(T5, ChunksInARowGiveTheWholeModelsGradients) {
  const Groups groups = Groups::single();
  for (const ModelConfig& config : {tiny_t5(), tiny_t5_v1_1(), tiny_megatron_t5(), with_experts(tiny_megatron_t5())}) {
    const NaivePair pair = tiny_pair(config, 2, 6, 4);
    const ModelInput input = pair_model_input(pair);
    const TensorMap weights = golden_weights(*build_model(config, tiny_context(groups)), at::kDouble);
    const TensorMap expected = naive_pair_gradients(config, weights, pair);
    const std::vector<Unit> units = model_units(config);
    std::vector<std::unique_ptr<Model>> chunks;
    std::vector<Bundle> sent, received(1);
    for (int64_t unit = 0; unit < std::ssize(units); ++unit) {
      ModelPart part = ModelPart::whole(units);
      part.range = {unit, 1};
      chunks.push_back(family_for(config).build(config, tiny_context(groups), part));
      load(*chunks.back(), weights);
      attach_gradients(*chunks.back());
      const std::vector<TensorSpec> specs = chunks.back()->boundary(input.context);
      ASSERT_EQ(specs.size(), received.back().tensors.size()) << unit;
      for (const TensorSpec& spec : specs) {
        EXPECT_EQ(received.back().at(spec.name).sizes(), spec.shape) << unit << " " << spec.name;
      }
      ModelOutput output = chunks.back()->forward(input, received.back(), HeadOutput::kLoss);
      if (!output.terms.empty()) output.terms[0].objective.backward();
      sent.push_back(output.boundary);
      received.emplace_back();
      for (const auto& [name, tensor] : sent.back().tensors) {
        received.back().set(name, tensor.detach().clone().set_requires_grad(true));
      }
    }
    TensorMap gradients;
    for (size_t chunk = chunks.size(); chunk-- > 0;) {
      std::vector<at::Tensor> roots, root_gradients;
      for (const auto& [name, tensor] : sent[chunk].tensors) {
        roots.push_back(tensor);
        root_gradients.push_back(received[chunk + 1].at(name).grad());
      }
      if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
      for (const auto& [name, gradient] : gradients_of(*chunks[chunk])) {
        gradients[name] = gradients.contains(name) ? gradients[name] + gradient : gradient;
      }
    }
    expect_gradients(gradients, expected, 1e-9, family_for(config).name);
  }
}

void expect_logits_of_the_full_forward(const ModelConfig& config) {
  const Groups groups = Groups::single();
  const auto model = build_model(config, tiny_context(groups));
  const TensorMap weights = golden_weights(*model, at::kDouble);
  load(*model, weights);
  NaivePair pair = tiny_pair(config, 2, 7, 6);
  pair.lengths.fill_(6);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = naive_pair_logits(config, weights, pair);
  KvCache cache;
  cache.capacity = 6;
  for (const int64_t length : {1, 3, 2}) {
    ModelInput input = pair_model_input(pair);
    input.tokens = pair.tokens.narrow(1, cache.length, length);
    input.context.s = length;
    input.context.row_ids.reset();
    input.context.mask.key_lengths.reset();
    input.context.is_training = false;
    input.context.cache = &cache;
    // The encoder works once: what it would read later does not matter.
    if (cache.length > 0) input.more.set("encoder_tokens", at::zeros_like(pair.encoder_tokens));
    const at::Tensor logits = model->forward(input, {}, HeadOutput::kLogits).logits;
    EXPECT_LT(relative_difference(logits, expected.narrow(1, cache.length, length)), 1e-10) << cache.length;
    cache.length += length;
  }
}

TEST(T5, GenerationWithACacheGivesTheLogitsOfTheFullForward) {
  for (const ModelConfig& config : {tiny_t5_v1_1(), tiny_megatron_t5(), with_experts(tiny_megatron_t5())}) {
    expect_logits_of_the_full_forward(config);
  }
}

TEST(T5, NamesAndTiesAreThoseOfHuggingFace) {
  const Groups groups = Groups::single();
  std::vector<std::string> names;
  const auto model = build_model(tiny_t5_v1_1(), tiny_context(groups));
  for (const auto& [name, tensor] : values_of(*model)) names.push_back(name);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  // Table and head, positions and the last norm of each stack; 9 tensors a layer, and 5 more of one that attends twice.
  EXPECT_EQ(names.size(), 2u + 2u + 2u + 2 * 9u + 3 * 14u);
  for (const char* name :
       {"shared.weight", "lm_head.weight", "encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.1.layer.0.SelfAttention.q.weight", "encoder.block.1.layer.1.DenseReluDense.wi_0.weight",
        "decoder.block.2.layer.1.EncDecAttention.o.weight", "decoder.block.2.layer.1.layer_norm.weight",
        "decoder.block.2.layer.2.DenseReluDense.wo.weight"}) {
    EXPECT_TRUE(has(name)) << name;
  }
  const auto tied = build_model(tiny_t5(), tiny_context(groups));
  for (const Parameter* parameter : tied->parameters()) {
    if (parameter->name() != "shared.weight") continue;
    EXPECT_EQ(
        parameter->placement().pieces[0].aliases,
        (std::vector<std::string>{"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}));
  }
}

TEST(T5, MegatronsHasOneTableOfPositionsAndABiasOfTheTiedOutput) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_megatron_t5();
  EXPECT_EQ(family_for(config).name, "megatron_t5");
  EXPECT_THROW(make_hf_config(family_for(config), config, at::kFloat), UserError);
  const auto shapes_of = [&](const ModelConfig& one) {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& [name, tensor] : values_of(*build_model(one, tiny_context(groups))))
      shapes[name] = tensor.sizes().vec();
    return shapes;
  };
  const std::map<std::string, std::vector<int64_t>> shapes = shapes_of(config);
  EXPECT_EQ(shapes.at("shared_position_embeddings.weight"),
            (std::vector<int64_t>{config.max_position_embeddings, config.hidden_size}));
  EXPECT_EQ(shapes.at("lm_head.bias"), std::vector<int64_t>{*config.vocab_size});
  EXPECT_FALSE(shapes.contains("lm_head.weight"));
  // Table, positions and the output's bias, a norm of each stack; 16 tensors a layer, and 10 more of one that attends
  // twice.
  EXPECT_EQ(shapes.size(), 3u + 2 * 2u + 2 * 16u + 3 * 26u);
  ModelConfig untied = config;
  untied.untie_embeddings_and_output_weights = true;
  EXPECT_FALSE(shapes_of(untied).contains("lm_head.bias"));
  // Positions end with the table, in either sequence.
  const auto model = build_model(config, tiny_context(groups));
  load(*model, golden_weights(*model, at::kDouble));
  for (const auto& [encoder_s, s] : {std::pair<int64_t, int64_t>{config.max_position_embeddings + 1, 4},
                                     std::pair<int64_t, int64_t>{4, config.max_position_embeddings + 1}}) {
    const ModelInput input = pair_model_input(tiny_pair(config, 1, encoder_s, s));
    EXPECT_THROW(model->forward(input, {}, HeadOutput::kLogits), UserError) << encoder_s << " " << s;
  }
}

// The keys of google-t5/t5-small that say something, and of google/t5-v1_1-small.
TEST(T5, ConfigurationsOfTheHubAreRead) {
  nlohmann::json file = {{"architectures", {"T5ForConditionalGeneration"}},
                         {"model_type", "t5"},
                         {"d_model", 512},
                         {"d_ff", 2048},
                         {"d_kv", 64},
                         {"num_layers", 6},
                         {"num_heads", 8},
                         {"n_positions", 512},
                         {"relative_attention_num_buckets", 32},
                         {"layer_norm_epsilon", 1e-06},
                         {"dropout_rate", 0.1},
                         {"initializer_factor", 1.0},
                         {"is_encoder_decoder", true},
                         {"decoder_start_token_id", 0},
                         {"pad_token_id", 0},
                         {"eos_token_id", 1},
                         {"vocab_size", 32128}};
  const auto find = [](std::string_view name) {
    for (const ModelFamily* family : model_families()) {
      if (family->name == name) return family;
    }
    return static_cast<const ModelFamily*>(nullptr);
  };
  const ModelFamily* family = find("t5");
  ASSERT_NE(family, nullptr);
  const ModelConfig old = family->from_hf(file);
  EXPECT_TRUE(old.relu && old.scale_decoder_outputs && !old.untie_embeddings_and_output_weights);
  EXPECT_EQ(old.num_decoder_layers(), 6);
  EXPECT_EQ(old.relative_attention_max_distance, 128);
  EXPECT_EQ(old.bos_token_id, 0);
  EXPECT_EQ(old.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_TRUE(check_model_config(old).empty());
  EXPECT_EQ(&family_for(old), family);
  file.erase("n_positions");
  file.update({{"feed_forward_proj", "gated-gelu"}, {"tie_word_embeddings", false}, {"num_decoder_layers", 8}});
  const ModelConfig newer = family->from_hf(file);
  EXPECT_TRUE(newer.geglu && !newer.scale_decoder_outputs && newer.untie_embeddings_and_output_weights);
  EXPECT_EQ(newer.num_decoder_layers(), 8);
  EXPECT_EQ(&family_for(newer), family);
  const nlohmann::json written = make_hf_config(*family, newer, at::kFloat);
  EXPECT_EQ(architecture_of(family->from_hf(written)), architecture_of(newer));
  EXPECT_EQ(written.at("decoder_start_token_id"), 0);
  file["feed_forward_proj"] = "gated-silu";
  EXPECT_THROW(family->from_hf(file), UserError);
}

TEST(T5, WhatItCannotBeIsRefused) {
  const auto error_of = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = tiny_t5();
    change(config);
    const std::vector<UserError> errors = check_model_config(config);
    return errors.size() == 1 ? std::string(errors[0].message()) : fmt::format("{} errors", errors.size());
  };
  EXPECT_EQ(error_of([](ModelConfig& c) { c.position_embedding_type = PositionEmbedding::kRope; }),
            "model_type t5 with position_embedding_type rope");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.causal = false; }),
            "is_causal is false, and with model_type t5 always true");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.relative_attention_max_distance = 4; }),
            "relative_attention_num_buckets 8 with relative_attention_max_distance 4: the first must be even, and half "
            "of it less than the second");
  EXPECT_EQ(error_of([](ModelConfig& c) {
              c.model_type = ModelType::kGpt;
              c.position_embedding_type = PositionEmbedding::kNone;
              c.relative_attention_num_buckets = 32;
              c.relative_attention_max_distance = 128;
              c.scale_decoder_outputs = false;
            }),
            "decoder_num_layers is for model_type t5, which is gpt");
  ThreadWorld(2).run(Mesh({.cp = 2}),
                     [&](Groups& groups) { EXPECT_THROW(build_model(tiny_t5(), tiny_context(groups)), UserErrors); });
}

}  // namespace
}  // namespace megalith
