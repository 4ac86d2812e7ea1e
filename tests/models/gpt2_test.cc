// GPT-2: the whole model against one written out in ATen, which family an architecture is of, its tensors' names, and
// its config.json.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;
using nlohmann::json;

// Two layers, four heads of 3 channels, an odd vocabulary that is padded.
ModelConfig tiny_gpt2() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 12;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 20;
  config.vocab_size = 37;
  config.make_vocab_size_divisible_by = 16;
  config.max_position_embeddings = 16;
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

// (b, s, v)
at::Tensor naive_gpt2_logits(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input) {
  const int64_t b = input.tokens.size(0), s = input.tokens.size(1), n = config.num_attention_heads;
  const auto of = [&](const std::string& name) { return weights.at("transformer." + name); };
  const auto linear = [&](const std::string& name, const at::Tensor& x) {
    return x.matmul(of(name + ".weight")) + of(name + ".bias");
  };
  const auto norm = [&](const std::string& name, const at::Tensor& x) {
    return at::layer_norm(x, {config.hidden_size}, of(name + ".weight"), of(name + ".bias"), config.norm_epsilon);
  };
  const auto heads = [&](const at::Tensor& x) { return x.view({b, s, n, -1}).transpose(1, 2); };
  at::Tensor hidden_pairs = at::ones({s, s}, at::kBool).triu(1).unsqueeze(0);
  if (input.documents.defined()) {
    hidden_pairs = hidden_pairs.logical_or(input.documents.unsqueeze(2) != input.documents.unsqueeze(1));
  }
  at::Tensor x = at::embedding(of("wte.weight"), input.tokens) + at::embedding(of("wpe.weight"), input.position_ids);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = fmt::format("h.{}.", layer);
    const std::vector<at::Tensor> qkv =
        linear(name + "attn.c_attn", norm(name + "ln_1", x)).split(config.hidden_size, 2);
    const at::Tensor scores =
        heads(qkv[0]).matmul(heads(qkv[1]).transpose(2, 3)) / std::sqrt(static_cast<double>(config.head_dim()));
    const at::Tensor p =
        scores.masked_fill(hidden_pairs.unsqueeze(1), -std::numeric_limits<double>::infinity()).softmax(-1);
    x = x + linear(name + "attn.c_proj", p.matmul(heads(qkv[2])).transpose(1, 2).reshape({b, s, -1}));
    x = x + linear(name + "mlp.c_proj", at::gelu(linear(name + "mlp.c_fc", norm(name + "ln_2", x)), "tanh"));
  }
  const at::Tensor head = weights.contains("lm_head.weight") ? weights.at("lm_head.weight") : of("wte.weight");
  return norm("ln_f", x).matmul(head.t());
}

// Gradients of sum of weight * loss, and the sum.
TensorMap naive_gpt2_gradients(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input,
                               double& loss) {
  TensorMap leaves, gradients;
  for (const auto& [name, weight] : weights) leaves[name] = weight.clone().set_requires_grad(true);
  const at::Tensor logits = naive_gpt2_logits(config, leaves, input).view({-1, *config.vocab_size});
  const at::Tensor losses = at::nll_loss(logits.log_softmax(-1), input.labels.view(-1), {}, at::Reduction::None);
  const at::Tensor sum = (losses * input.loss_weights.view(-1)).sum();
  sum.backward();
  loss = sum.item<double>();
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad();
  return gradients;
}

struct Gpt2Pass {
  double loss = 0;
  TensorMap gradients;  // of this rank's slices, NaN elsewhere
};

Gpt2Pass run_gpt2(const ModelConfig& config, const LayerContext& context, const TensorMap& weights,
                  const NaiveInput& batch) {
  const auto model = build_model(config, context);
  load(*model, weights);
  attach_gradients(*model);
  const ModelOutput output = model->forward(model_input(batch), {}, HeadOutput::kLoss);
  output.terms[0].objective.backward();
  model->for_each_parameter([&](Parameter& parameter) {
    parameter.finish_step();
    if (!parameter.placement().partial_axes.contains(Axis::kTp)) return;
    context.groups->tp->all_reduce(parameter.grad(), ReduceOp::kSum, parameter.name()).wait();
  });
  return {output.terms[0].sum.item<double>(), gradients_of(*model)};
}

TEST(Gpt2, LossAndEveryGradientAreThoseOfTheWrittenOutModel) {
  for (const bool is_untied : {false, true}) {
    ModelConfig config = tiny_gpt2();
    config.untie_embeddings_and_output_weights = is_untied;
    const NaiveInput batch = tiny_batch(config, 2, 8, /*has_documents=*/true);
    const Groups single = Groups::single();
    const TensorMap weights = golden_weights(*build_model(config, tiny_context(single)), at::kDouble);
    EXPECT_EQ(weights.size(), 28u + (is_untied ? 1 : 0));
    double loss = 0;
    const TensorMap expected = naive_gpt2_gradients(config, weights, batch, loss);
    const auto expect_equal = [&](const Gpt2Pass& pass, const std::string& what) {
      EXPECT_NEAR(pass.loss, loss, 1e-12 * loss) << what;
      ASSERT_EQ(pass.gradients.size(), expected.size()) << what;
      for (const auto& [name, gradient] : pass.gradients) {
        EXPECT_LT(relative_difference(gradient, expected.at(name)), 1e-11) << what << ": " << name;
      }
    };
    for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
      expect_equal(run_gpt2(config, tiny_context(single, at::kDouble, kernels), weights, batch), "one rank");
    }
    for (const bool is_sequence_parallel : {false, true}) {
      std::vector<Gpt2Pass> passes(2);
      ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
        LayerContext context = tiny_context(groups);
        context.is_sequence_parallel = is_sequence_parallel;
        passes[static_cast<size_t>(groups.tp->rank())] = run_gpt2(config, context, weights, batch);
      });
      for (auto& [name, gradient] : passes[0].gradients) {
        gradient = at::where(gradient.isnan(), passes[1].gradients.at(name), gradient);
      }
      expect_equal(passes[0], is_sequence_parallel ? "tp 2 and sequence parallelism" : "tp 2");
    }
  }
}

TEST(Gpt2, GeneratesWithACacheWhatItComputesAtOnce) {
  const ModelConfig config = tiny_gpt2();
  const Groups groups = Groups::single();
  const auto model = build_model(config, tiny_context(groups));
  const TensorMap weights = golden_weights(*model, at::kDouble);
  load(*model, weights);
  const NaiveInput batch = tiny_batch(config, 1, 16, false);
  const at::Tensor expected = naive_gpt2_logits(config, weights, batch);
  const at::NoGradGuard no_grad;
  KvCache cache;
  cache.capacity = 16;
  for (const int64_t s : {5, 1, 1, 9}) {
    ModelInput input{.tokens = batch.tokens.narrow(1, cache.length, s)};
    input.context = {.b = 1, .s = s, .is_training = false, .cache = &cache};
    input.context.mask.query_positions = at::arange(cache.length, cache.length + s, at::kLong);
    const at::Tensor logits = model->forward(input, {}, HeadOutput::kLogits).logits;
    EXPECT_LT(relative_difference(logits, expected.narrow(1, cache.length, s)), 1e-12) << cache.length;
    cache.length += s;
  }
}

TEST(Gpt2, FilesMayLeaveThePrefixAway) {
  const Groups groups = Groups::single();
  LayerContext context = tiny_context(groups);
  context.device = at::kMeta;
  std::map<std::string, std::vector<std::string>> aliases;
  std::map<std::string, std::vector<int64_t>> shapes;
  build_model(tiny_gpt2(), context)->for_each_parameter([&](Parameter& parameter) {
    for (const Piece& piece : parameter.placement().pieces) {
      aliases[piece.name] = piece.aliases;
      shapes[piece.name] = piece.shape;
    }
  });
  EXPECT_EQ(aliases.at("transformer.wte.weight"), (std::vector<std::string>{"lm_head.weight", "wte.weight"}));
  EXPECT_EQ(aliases.at("transformer.h.1.attn.c_attn.bias"), std::vector<std::string>{"h.1.attn.c_attn.bias"});
  for (const auto& [name, others] : aliases) {
    ASSERT_TRUE(name.starts_with("transformer.")) << name;
    EXPECT_EQ(others.back(), name.substr(12));
  }
  EXPECT_EQ(shapes.at("transformer.h.0.attn.c_attn.weight"), (std::vector<int64_t>{12, 36}));
  EXPECT_EQ(shapes.at("transformer.h.0.mlp.c_fc.weight"), (std::vector<int64_t>{12, 20}));
  EXPECT_EQ(shapes.at("transformer.wpe.weight"), (std::vector<int64_t>{16, 12}));
}

TEST(Gpt2, WhatItsClassCannotSayIsMegatronsGpt) {
  const auto family = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = tiny_gpt2();
    change(config);
    return std::string(family_for(config).name);
  };
  EXPECT_EQ(family([](ModelConfig&) {}), "gpt2");
  EXPECT_EQ(family([](ModelConfig& c) { c.untie_embeddings_and_output_weights = true; }), "gpt2");
  EXPECT_EQ(family([](ModelConfig& c) { c.kv_channels = 3; }), "gpt2");
  EXPECT_EQ(family([](ModelConfig& c) { c.bias_gelu_fusion = false, c.openai_gelu = true; }), "gpt2");
  EXPECT_EQ(family([](ModelConfig& c) { c.group_query_attention = true, c.num_query_groups = 4; }), "gpt2");

  EXPECT_EQ(family([](ModelConfig& c) { c.bias_gelu_fusion = false; }), "gpt");  // GELU by the error function
  EXPECT_EQ(family([](ModelConfig& c) { c.squared_relu = true; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.swiglu = true; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.normalization = Normalization::kRmsNorm; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.apply_layernorm_1p = true; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.add_bias_linear = false, c.openai_gelu = true; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.kv_channels = 5; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.group_query_attention = true, c.num_query_groups = 2; }), "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.position_embedding_type = PositionEmbedding::kRope, c.kv_channels = 4; }),
            "gpt");
  EXPECT_EQ(family([](ModelConfig& c) { c.position_embedding_type = PositionEmbedding::kNone; }), "gpt");
}

TEST(Gpt2, MegatronsGptIsBuiltInEveryFormAndNotExported) {
  const Groups groups = Groups::single();
  const std::function<void(ModelConfig&)> changes[] = {
      [](ModelConfig& c) { c.bias_gelu_fusion = false; },
      [](ModelConfig& c) { c.squared_relu = true, c.add_bias_linear = false; },
      [](ModelConfig& c) { c.swiglu = true, c.group_query_attention = true, c.num_query_groups = 2; },
      [](ModelConfig& c) { c.apply_layernorm_1p = true, c.position_embedding_type = PositionEmbedding::kNone; },
      [](ModelConfig& c) { c.position_embedding_type = PositionEmbedding::kRope, c.kv_channels = 6; },
  };
  for (const auto& change : changes) {
    ModelConfig config = tiny_gpt2();
    change(config);
    const Gpt2Pass pass =
        run_gpt2(config, tiny_context(groups), golden_weights(*build_model(config, tiny_context(groups)), at::kDouble),
                 tiny_batch(config, 2, 8, false));
    EXPECT_TRUE(std::isfinite(pass.loss));
    for (const auto& [name, gradient] : pass.gradients) {
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
      EXPECT_TRUE(name.starts_with("model.") || name == "lm_head.weight") << name;
    }
    EXPECT_THROW(make_hf_config(family_for(config), config, at::kFloat), UserError);
  }
}

class Gpt2Config : public testing::Test {
 protected:
  // As transformers 4.57 saves it.
  json saved_ = json::parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.2, "eos_token_id": 50256, "initializer_range": 0.03, "layer_norm_epsilon": 1e-06,
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 512,
    "reorder_and_upcast_attn": false, "resid_pdrop": 0.2, "scale_attn_by_inverse_layer_idx": false,
    "scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true, "torch_dtype": "float32",
    "transformers_version": "4.57.1", "use_cache": true, "vocab_size": 50257})");

  HfModel read(const json& config) {
    std::ofstream(folder_.path() / "config.json") << config.dump(2);
    return read_hf_config(folder_.path());
  }
  std::string refusal(const std::string& key, const json& value) {
    json config = saved_;
    config[key] = value;
    try {
      read(config);
    } catch (const UserError& error) {
      return error.message();
    }
    return "accepted";
  }
  TemporaryFolder folder_;
};

TEST_F(Gpt2Config, IsReadAsItsClassReadsIt) {
  const HfModel model = read(saved_);
  EXPECT_EQ(model.family->name, "gpt2");
  const ModelConfig& config = model.config;
  EXPECT_EQ(&family_for(config), model.family);
  EXPECT_EQ(config.num_layers, 12);
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.num_kv_heads(), 12);
  EXPECT_EQ(config.head_dim(), 64);
  EXPECT_EQ(config.ffn_size(), 3072);
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_EQ(config.hidden_dropout, 0.2);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_EQ(config.init_method_std, 0.03);
  EXPECT_FALSE(config.untie_embeddings_and_output_weights);
  EXPECT_EQ(config.bos_token_id, 50256);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{50256});

  json five = saved_;  // version 5 renames the dtype and writes what version 4 leaves to the class
  five.erase("torch_dtype");
  five["dtype"] = "float32";
  five["tie_word_embeddings"] = true;
  five["add_cross_attention"] = false;
  five["pad_token_id"] = nullptr;
  EXPECT_EQ(read(five).family->to_hf(read(five).config, at::kFloat), model.family->to_hf(config, at::kFloat));

  json bare = {{"model_type", "gpt2"}, {"n_layer", 1}, {"n_embd", 8}, {"n_head", 2}, {"vocab_size", 11}};
  const ModelConfig defaults = read(bare).config;
  EXPECT_EQ(defaults.max_position_embeddings, 1024);
  EXPECT_EQ(defaults.norm_epsilon, 1e-5);
  EXPECT_EQ(defaults.hidden_dropout, 0.1);
  EXPECT_EQ(defaults.attention_dropout, 0.1);
  bare["n_inner"] = 24;
  bare["tie_word_embeddings"] = false;
  EXPECT_EQ(read(bare).config.ffn_size(), 24);
  EXPECT_TRUE(read(bare).config.untie_embeddings_and_output_weights);
}

// As in files whose vocabulary was changed; transformers loads them.
TEST_F(Gpt2Config, AnEndOfTextAboveItsVocabularyIsNotedAndEndsNothing) {
  saved_["vocab_size"] = 257;
  const HfModel model = read(saved_);
  EXPECT_TRUE(model.config.eos_token_ids.empty());
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_TRUE(
      model.notes[0].ends_with("eos_token_id 50256 is not below vocab_size 257: it cannot occur, and ends no text"))
      << model.notes[0];
  saved_["eos_token_id"] = {256, 50256};
  EXPECT_EQ(read(saved_).config.eos_token_ids, std::vector<int64_t>{256});
  saved_["eos_token_id"] = 256;
  EXPECT_TRUE(read(saved_).notes.empty());
}

TEST_F(Gpt2Config, WhatIsWrittenReadsBackTheSame) {
  for (const json& inner : {json(nullptr), json(1000)}) {
    saved_["n_inner"] = inner;
    const HfModel model = read(saved_);
    const json written = model.family->to_hf(model.config, at::kFloat);
    for (const auto& [key, value] : saved_.items()) {
      if (key.starts_with("summary_")) continue;  // of classes with other heads
      ASSERT_TRUE(written.contains(key)) << key;
      EXPECT_EQ(written.at(key), value) << key;
    }
    EXPECT_EQ(model.family->to_hf(read(written).config, at::kFloat), written);
  }
}

TEST_F(Gpt2Config, WhatCannotBeHonouredIsNamed) {
  EXPECT_EQ(refusal("activation_function", "gelu_pytorch_tanh"), "accepted");  // the same form
  EXPECT_NE(refusal("activation_function", "relu").find("activation_function is \"relu\""), std::string::npos);
  EXPECT_NE(refusal("activation_function", "gelu").find("activation_function is \"gelu\""), std::string::npos);
  EXPECT_NE(refusal("embd_pdrop", 0.1).find("resid_pdrop is 0.2 and embd_pdrop 0.1"), std::string::npos);
  EXPECT_NE(refusal("scale_attn_weights", false).find("scale_attn_weights is false"), std::string::npos);
  EXPECT_NE(refusal("scale_attn_by_inverse_layer_idx", true).find("scale_attn_by_inverse_layer_idx"),
            std::string::npos);
  EXPECT_NE(refusal("reorder_and_upcast_attn", true).find("reorder_and_upcast_attn is true"), std::string::npos);
  EXPECT_NE(refusal("add_cross_attention", true).find("add_cross_attention is true"), std::string::npos);
  EXPECT_NE(refusal("n_layer", 0).find("n_layer is 0, expected at least 1"), std::string::npos);
  EXPECT_NE(refusal("n_embd", nullptr).find("n_embd"), std::string::npos);
  EXPECT_NE(refusal("n_head", 5).find("num_attention_heads 5 does not divide hidden_size 768"), std::string::npos);
  EXPECT_NE(refusal("quantization_config", {{"quant_method", "gptq"}}).find("quantised (gptq)"), std::string::npos);
  EXPECT_NE(refusal("architectures", {"GPT2ForTokenClassification"}).find("GPT2ForTokenClassification"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith
