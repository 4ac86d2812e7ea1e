// Loss and every gradient against the naive decoder.
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

struct Case {
  std::string name;
  ModelConfig config;
  bool has_documents = false;
  // Eight significant bits, a dozen roundings in a row: 1 to 3 % of the largest element is usual.
  double bf16_tolerance = 0.08;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](std::string name, bool has_documents, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = tiny_config();
    change(config);
    list.push_back({std::move(name), config, has_documents});
  };
  add("grouped_heads_untied", false, [](ModelConfig&) {});
  add("tied_rope_scaling", false, [](ModelConfig& c) {
    c.untie_embeddings_and_output_weights = false;
    c.use_rope_scaling = true;
    c.rope_scaling_original_max_position_embeddings = 16;
  });
  add("qkv_bias_documents", true, [](ModelConfig& c) { c.add_qkv_bias = true; });
  add("no_groups_no_padding", true, [](ModelConfig& c) {
    c.group_query_attention = false;
    c.kv_channels = 4;
    c.make_vocab_size_divisible_by = 1;
    c.vocab_size = 38;
  });
  add("dropout_tied", true, [](ModelConfig& c) {
    c.hidden_dropout = 0.25;
    c.attention_dropout = 0.125;
    c.untie_embeddings_and_output_weights = false;
    c.add_qkv_bias = true;
  });
  add("norms_of_heads", true, [](ModelConfig& c) {
    c.qk_layernorm = true;
    c.attention_dropout = 0.125;
  });
  // The weights' six gradients are what is left of terms that cancel (those of a softmax add up to zero), each rounded
  // twice more, by the norm and by the rotation: 10 % of the largest is seen on both kernels.
  list.back().bf16_tolerance = 0.15;
  add("stretched_by_yarn_apart_from_a_window", false, [](ModelConfig& c) {
    c.window_size = {2, 0};
    c.window_attn_skip_freq = "2";
    c.rotary_base_local = c.rotary_base;
    c.use_rope_scaling = true;
    c.rope_scaling_type = RopeScalingType::kYarn;
    c.rope_scaling_original_max_position_embeddings = 16;
    c.rope_scaling_beta_fast = 4;
  });
  add("norms_behind_the_blocks_documents", true, [](ModelConfig& c) {
    c.norm_placement = NormPlacement::kPost;
    c.hidden_dropout = 0.25;
  });
  add("norms_on_both_sides", false, [](ModelConfig& c) { c.norm_placement = NormPlacement::kSandwich; });
  add("norms_behind_experts_and_a_prediction_module", false, [](ModelConfig& c) {
    c.norm_placement = NormPlacement::kPost;
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.mtp_num_layers = 1;
  });
  add("norms_of_projections_behind_the_blocks", true, [](ModelConfig& c) {
    c.qk_layernorm = true;
    c.qk_layernorm_scope = HeadNormScope::kProjection;
    c.norm_placement = NormPlacement::kPost;
  });
  add("sliding_window", false, [](ModelConfig& c) {
    c.window_size = {2, 0};
    c.attention_dropout = 0.125;
  });
  add("sliding_window_documents", true, [](ModelConfig& c) { c.window_size = {1, 0}; });
  add("windows_in_some_layers", true, [](ModelConfig& c) {
    c.num_layers = 3;
    c.window_size = {1, 0};
    c.window_attn_skip_freq = "2";
  });
  add("windows_with_a_rotation_of_their_own", false, [](ModelConfig& c) {
    c.num_layers = 3;
    c.window_size = {2, 0};
    c.window_attn_skip_freq = "[0,1,1]";
    c.rotary_base_local = 20;
    c.use_rope_scaling = true;
    c.rope_scaling_original_max_position_embeddings = 16;
    c.mtp_num_layers = 1;
    c.mtp_loss_scaling_factor = 0.3;
  });
  add("a_layer_without_rotation", true, [](ModelConfig& c) {
    c.num_layers = 3;
    c.no_rope_freq = "2";
  });
  const auto convolves = [](ModelConfig& c) {
    c.num_layers = 3;
    c.layer_types = {"conv", "full_attention", "conv"};
    c.hidden_dropout = 0.25;
  };
  add("convolutions_documents", true, convolves);
  add("convolutions_with_biases_and_experts", false, [&](ModelConfig& c) {
    convolves(c);
    c.conv_kernel_size = 4;
    c.conv_bias = true;
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.mtp_num_layers = 1;
  });
  add("chunks_and_tempered_queries", true, [](ModelConfig& c) {
    c.num_layers = 3;
    c.no_rope_freq = "2";
    c.attention_chunk_size = 3;
    c.attn_temperature_scale = 0.5;
    c.attn_temperature_floor = 2;
    c.qk_l2_norm = true;
  });
  list.back().bf16_tolerance = 0.15;  // as with the norms of heads above
  add("experts_with_weighted_inputs", false, [](ModelConfig& c) {
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.moe_router_topk = 1;
    c.moe_router_score_function = RouterScore::kSigmoid;
    c.moe_apply_probs_on_input = true;
  });
  add("learned_sinks_documents", true, [](ModelConfig& c) {
    c.softmax_type = SoftmaxType::kLearnable;
    c.window_size = {2, 0};
    c.attention_dropout = 0.125;
  });
  add("softmax_off_by_one", false, [](ModelConfig& c) { c.softmax_type = SoftmaxType::kOffByOne; });
  // The weights of norms are around 0 there; golden_weights() has them around 1, which is as good.
  const auto gemma = [](ModelConfig& c) {
    c.swiglu = false;
    c.geglu = c.apply_layernorm_1p = c.scale_embeddings = true;
    c.norm_placement = NormPlacement::kSandwich;
    c.query_pre_attn_scalar = 9;
    c.untie_embeddings_and_output_weights = false;
    c.window_size = {2, 0};
    c.window_attn_skip_freq = "2";
  };
  add("gemma2", true, [&](ModelConfig& c) {
    gemma(c);
    // Near the scores and logits that there are, so that they are bent.
    c.attn_logit_softcapping = 1;
    c.final_logit_softcapping = 2;
    c.attention_dropout = 0.125;
  });
  add("gemma3", false, [&](ModelConfig& c) {
    gemma(c);
    c.qk_layernorm = true;
    c.rotary_base_local = 20;
    c.rotary_seq_len_interpolation_factor = 4;
  });
  // Norms of heads again, after twice as many norms as Llama's layers have: up to 12 % is seen.
  list.back().bf16_tolerance = 0.2;
  add("capped_experts_and_a_prediction_module", false, [](ModelConfig& c) {
    c.swiglu = false;
    c.geglu = c.scale_embeddings = true;
    c.final_logit_softcapping = 2;
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.mtp_num_layers = 1;
  });
  add("experts", true, [](ModelConfig& c) {
    c.num_experts = 5;
    c.moe_ffn_hidden_size = 12;
  });
  add("biases_of_experts_and_of_their_router", false, [](ModelConfig& c) {
    c.add_bias_linear = true;
    c.num_experts = 5;
    c.moe_ffn_hidden_size = 12;
    c.moe_layer_freq = "[0,1]";
    c.mtp_num_layers = 1;
  });
  add("limited_gates_and_shifted_ups", true, [](ModelConfig& c) {
    c.swiglu = false;
    c.quick_geglu = true;
    c.glu_linear_offset = 1;
    c.activation_func_clamp_value = 0.25;  // near the numbers that there are
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.moe_layer_freq = "[0,1]";
  });
  // Rounding carries some numbers over the limit, where a gradient is or is not.
  list.back().bf16_tolerance = 0.5;
  add("gpt_oss", false, [](ModelConfig& c) {
    c.swiglu = false;
    c.quick_geglu = c.add_bias_linear = true;
    c.glu_linear_offset = 1;
    c.activation_func_clamp_value = 7;
    c.softmax_type = SoftmaxType::kLearnable;
    c.window_size = {2, 0};
    c.window_attn_skip_freq = "2";
    c.num_experts = 5;
    c.use_rope_scaling = true;
    c.rope_scaling_type = RopeScalingType::kYarn;
    c.rope_scaling_truncate = false;
    c.rope_scaling_original_max_position_embeddings = 16;
    c.rope_scaling_beta_fast = 4;
  });
  add("prediction_modules_tied", true, [](ModelConfig& c) {
    c.mtp_num_layers = 2;
    c.mtp_loss_scaling_factor = 0.3;
    c.untie_embeddings_and_output_weights = false;
  });
  add("experts_behind_a_dense_layer_and_a_prediction_module", false, [](ModelConfig& c) {
    c.num_experts = 4;
    c.moe_ffn_hidden_size = 12;
    c.moe_layer_freq = "[0,1]";
    c.mtp_num_layers = 1;
    c.mtp_loss_scaling_factor = 0.5;
  });
  return list;
}

struct Measured {
  double loss_sum = 0, weight = 0;
  at::Tensor token_losses;
  std::vector<double> prediction_sums;
  TensorMap gradients;
};

// Two microbatches: the rows of the batch, one at a time; gradients accumulate.
Measured measure(Model& model, const TensorMap& weights, const NaiveInput& batch, double scale, bool in_microbatches) {
  load(model, weights);
  attach_gradients(model);
  Measured measured;
  std::vector<at::Tensor> token_losses;
  const int64_t b = batch.tokens.size(0), rows = in_microbatches ? 1 : b;
  for (int64_t first = 0; first < b; first += rows) {
    const auto cut = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, first, rows) : tensor;
    };
    NaiveInput part = batch;
    for (at::Tensor NaiveInput::*member : {&NaiveInput::tokens, &NaiveInput::labels, &NaiveInput::loss_weights,
                                           &NaiveInput::position_ids, &NaiveInput::documents, &NaiveInput::row_ids}) {
      part.*member = cut(batch.*member);
    }
    const ModelOutput output = model.forward(model_input(part, scale), {}, HeadOutput::kLoss);
    const LossTerm& term = output.terms.at(0);
    at::Tensor objective = term.objective;
    measured.prediction_sums.resize(output.terms.size() - 1);
    for (size_t i = 1; i < output.terms.size(); ++i) {
      EXPECT_EQ(output.terms[i].name, model.added_losses().at(i - 1));
      objective = objective + output.terms[i].objective;
      measured.prediction_sums[i - 1] += output.terms[i].sum.item<double>();
    }
    objective.backward();
    measured.loss_sum += term.sum.item<double>();
    measured.weight += term.weight.item<double>();
    EXPECT_NEAR(term.objective.item<double>(), term.sum.item<double>() * scale,
                1e-5 * std::abs(term.sum.item<double>() * scale));
    token_losses.push_back(output.token_losses);
  }
  measured.token_losses = at::cat(token_losses);
  measured.gradients = gradients_of(model);
  return measured;
}

void expect_equal(const Measured& measured, const Case& tested, const TensorMap& weights, const NaiveInput& batch,
                  double scale, double tolerance, const std::string& what) {
  double loss_sum = 0;
  const TensorMap expected = naive_gradients(tested.config, weights, batch, scale, &loss_sum);
  EXPECT_NEAR(measured.loss_sum, loss_sum, tolerance * loss_sum) << what;
  EXPECT_EQ(measured.weight, batch.loss_weights.sum().item<double>()) << what;
  const at::Tensor losses = naive_token_losses(tested.config, weights, batch).masked_fill(batch.loss_weights == 0, 0);
  EXPECT_LT(relative_difference(measured.token_losses, losses.detach()), tolerance) << what;
  const std::vector<at::Tensor> further = naive_prediction_losses(tested.config, weights, batch);
  ASSERT_EQ(measured.prediction_sums.size(), further.size()) << what;
  for (size_t i = 0; i < further.size(); ++i) {
    EXPECT_NEAR(measured.prediction_sums[i], further[i].item<double>(), tolerance * loss_sum) << what;
  }
  ASSERT_EQ(measured.gradients.size(), expected.size()) << what;
  for (const auto& [name, gradient] : expected) {
    EXPECT_LT(relative_difference(measured.gradients.at(name), gradient), tolerance) << what << ": " << name;
  }
}

// Rounding of float64 grows by a few hundred additions and two layers: 1e-12 is usual, 1e-9 leaves room.
constexpr double kTolerance = 1e-9;

TEST(DecoderGradients, EqualTheNaiveModelInFloat64) {
  const Groups groups = Groups::single();
  for (const Case& tested : cases()) {
    const NaiveInput batch = tiny_batch(tested.config, 3, 7, tested.has_documents);
    const auto model = build_model(tested.config, tiny_context(groups));
    const TensorMap weights = golden_weights(*model, at::kDouble);
    for (const bool in_microbatches : {false, true}) {
      const Measured measured = measure(*model, weights, batch, 0.125, in_microbatches);
      expect_equal(measured, tested, weights, batch, 0.125, kTolerance,
                   tested.name + (in_microbatches ? ", microbatches" : ""));
    }
  }
}

TEST(DecoderGradients, FusedKernelsAgreeInFloat32) {
  const Groups groups = Groups::single();
  for (const Case& tested : cases()) {
    const NaiveInput batch = tiny_batch(tested.config, 3, 7, tested.has_documents);
    const auto model = build_model(tested.config, tiny_context(groups, at::kFloat, Kernels::kFused));
    TensorMap weights = golden_weights(*model, at::kFloat);
    const Measured measured = measure(*model, weights, batch, 0.125, false);
    for (auto& [name, tensor] : weights) tensor = tensor.to(at::kDouble);
    // The contract for exchanged models: 1e-4 of the largest element; float32 rounding of these sizes is near 1e-6.
    expect_equal(measured, tested, weights, batch, 0.125, 2e-5, tested.name);
  }
}

TEST(DecoderGradients, Bfloat16StaysNear) {
  const Groups groups = Groups::single();
  for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
    for (const Case& tested : cases()) {
      const NaiveInput batch = tiny_batch(tested.config, 3, 7, tested.has_documents);
      const auto model = build_model(tested.config, tiny_context(groups, at::kBFloat16, kernels));
      TensorMap weights = golden_weights(*model, at::kBFloat16);
      const Measured measured = measure(*model, weights, batch, 0.125, false);
      for (const auto& [name, gradient] : measured.gradients) EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
      for (auto& [name, tensor] : weights) tensor = tensor.to(at::kDouble);
      expect_equal(measured, tested, weights, batch, 0.125, tested.bf16_tolerance, tested.name);
    }
  }
}

TEST(DecoderGradients, TensorParallelRanksEqualOne) {
  for (const Case& tested : cases()) {
    const NaiveInput batch = tiny_batch(tested.config, 4, 6, tested.has_documents);
    TensorMap weights;
    {
      const Groups groups = Groups::single();
      weights = golden_weights(*build_model(tested.config, tiny_context(groups)), at::kDouble);
    }
    for (const bool is_sequence_parallel : {false, true}) {
      const int tp = 2;
      std::vector<Measured> measured(tp);
      ThreadWorld(tp).run(Mesh({.tp = tp, .etp = tp}), [&](Groups& groups) {
        LayerContext context = tiny_context(groups);
        context.is_sequence_parallel = is_sequence_parallel;
        const auto model = build_model(tested.config, context);
        Measured& mine = measured[static_cast<size_t>(groups.tp->rank())];
        mine = measure(*model, weights, batch, 0.125, true);
        // Partial sums over tp (norms under sequence parallelism) are added up, as the trainer will.
        model->for_each_parameter([&](Parameter& parameter) {
          if (parameter.placement().partial_axes.contains(Axis::kTp)) {
            groups.tp->all_reduce(parameter.grad(), ReduceOp::kSum, parameter.name()).wait();
          }
        });
        mine.gradients = gradients_of(*model);
      });
      Measured whole = measured[0];
      EXPECT_EQ(measured[1].loss_sum, whole.loss_sum);
      for (auto& [name, gradient] : whole.gradients) {
        const at::Tensor& other = measured[1].gradients.at(name);
        // Slices fill each other's NaN; replicas are equal.
        const at::Tensor both = gradient.isfinite().logical_and(other.isfinite());
        EXPECT_TRUE(at::equal(gradient.masked_select(both), other.masked_select(both))) << name;
        gradient = at::where(gradient.isnan(), other, gradient);
      }
      for (const auto& [name, gradient] : measured[1].gradients) {
        if (!whole.gradients.contains(name)) whole.gradients[name] = gradient;
      }
      expect_equal(whole, tested, weights, batch, 0.125, kTolerance,
                   tested.name + (is_sequence_parallel ? ", tp 2 sp" : ", tp 2"));
    }
  }
}

TEST(DecoderGradients, FrozenParametersLeaveTheOthersAlone) {
  const Groups groups = Groups::single();
  const Case tested = cases()[2];
  const NaiveInput batch = tiny_batch(tested.config, 3, 7, true);
  const auto model = build_model(tested.config, tiny_context(groups));
  const TensorMap weights = golden_weights(*model, at::kDouble);
  int count = 0;
  model->for_each_parameter([&](Parameter& parameter) {
    if (count++ % 2 == 0) parameter.set_trainable(false);
  });
  const Measured measured = measure(*model, weights, batch, 1, false);
  const TensorMap expected = naive_gradients(tested.config, weights, batch, 1);
  EXPECT_LT(measured.gradients.size(), expected.size());
  for (const auto& [name, gradient] : measured.gradients) {
    EXPECT_LT(relative_difference(gradient, expected.at(name)), kTolerance) << name;
  }
}

TEST(DecoderGradients, EveryParameterBecomesReadyOnceAStep) {
  const Groups groups = Groups::single();
  const Case tested = cases()[1];  // tied: two contributions to one parameter
  const NaiveInput batch = tiny_batch(tested.config, 2, 5, false);
  const auto model = build_model(tested.config, tiny_context(groups));
  load(*model, golden_weights(*model, at::kDouble));
  attach_gradients(*model);
  std::map<std::string, int> ready;
  model->for_each_parameter(
      [&](Parameter& parameter) { parameter.set_ready_hook([&](Parameter& p) { ++ready[p.name()]; }); });
  for (const bool is_last : {false, true}) {
    model->for_each_parameter([&](Parameter& parameter) { parameter.set_last_microbatch(is_last); });
    model->forward(model_input(batch), {}, HeadOutput::kLoss).terms[0].objective.backward();
    EXPECT_EQ(ready.empty(), !is_last);
  }
  for (const Parameter* parameter : model->parameters()) EXPECT_EQ(ready[parameter->name()], 1) << parameter->name();
}

TEST(DecoderGradients, ObjectiveMustBeDifferentiatedWithOne) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config();
  const auto model = build_model(config, tiny_context(groups));
  load(*model, golden_weights(*model, at::kDouble));
  attach_gradients(*model);
  const ModelOutput output = model->forward(model_input(tiny_batch(config, 1, 4, false)), {}, HeadOutput::kLoss);
  EXPECT_THROW((output.terms[0].objective * 2).backward(), InternalError);
}

}  // namespace
}  // namespace megalith
