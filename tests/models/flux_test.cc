// FLUX: what a pass costs, the embedding of a number, angles, packed latents, what a folder may say, and a stream that
// joins (everything else is compared with diffusers in tests/oracle/flux_test.py, and on ranks in tests/layouts).
#include "models/flux.h"
#include "nn/timestep_embedding.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/flux_latents.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

ModelConfig published_flux() {
  ModelConfig config;
  config.model_type = ModelType::kDiffusion;
  config.num_joint_layers = 19;
  config.num_single_layers = 38;
  config.hidden_size = 3072;
  config.num_attention_heads = 24;
  return config;
}

at::Tensor units(uint64_t number, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor values = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) values[i] = unit_value(number, static_cast<uint64_t>(i));
  return values.view(shape);
}

// b samples of rows x columns tokens, and three tokens of text.
ModelInput numbered_input(const ModelConfig& config, int64_t b, int64_t rows, int64_t columns) {
  ModelInput input;
  input.context.b = b;
  input.context.s = rows * columns;
  input.context.encoder_s = 3;
  input.more.set("image", units(1000, {b, rows * columns, config.in_channels}));
  input.more.set("text", units(1001, {b, 3, config.context_dim}));
  input.more.set("pooled", units(1002, {b, config.vec_in_dim}));
  input.more.set("target", units(1003, {b, rows * columns, config.in_channels}));
  input.more.set("timesteps", at::linspace(0.5, 0.9, b, at::kFloat));
  input.more.set("guidance", at::full({b}, 3.5, at::kFloat));
  input.more.set("image_positions", image_positions(rows, columns));
  return input;
}

// diffusers' FluxTransformer2DModel with the same weights and inputs.
TEST(Flux, OutputIsThatOfDiffusers) {
  const Groups groups = Groups::single();
  const at::NoGradGuard no_grad;
  ModelConfig config = published_flux();
  config.num_joint_layers = config.num_single_layers = 1;
  config.hidden_size = 256;
  config.num_attention_heads = 2;
  config.context_dim = 32;
  config.vec_in_dim = 16;
  config.guidance_embed = true;
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto model = build_model(config, tiny_context(groups, at::kFloat, kernels));
    load(*model, golden_weights(*model, at::kFloat));
    const at::Tensor out = model->forward(numbered_input(config, 1, 2, 2), {}, HeadOutput::kLogits).logits[0];
    const std::vector<double> first = {1.13899, -7.80698, 11.3865, -3.04804};
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(out[0][static_cast<int64_t>(i)].item<double>(), first[i], 2e-4) << i;
    }
    EXPECT_NEAR(out[3][62].item<double>(), 10.7245, 2e-4);
    EXPECT_NEAR(out[3][63].item<double>(), 5.83537, 2e-4);
  }
}

double loss_of(Model& model, const ModelInput& input) {
  return model.forward(input, {}, HeadOutput::kLoss).terms.at(0).objective.item<double>();
}

// Each tensor's along a direction, against the difference of two losses.
TEST(Flux, GradientsAreThoseOfTheLoss) {
  const Groups groups = Groups::single();
  ModelConfig config = published_flux();
  config.num_joint_layers = config.num_single_layers = 2;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.axes_dim = {2, 2, 4};
  config.in_channels = 4;
  config.context_dim = 5;
  config.vec_in_dim = 3;
  config.model_channels = 6;
  config.guidance_embed = true;
  for (const bool is_recomputed : {false, true}) {
    LayerContext context = tiny_context(groups, at::kDouble, Kernels::kFused);
    context.recompute = {.core_attention = is_recomputed, .norms = is_recomputed, .mlp = is_recomputed};
    const auto model = build_model(config, context);
    load(*model, golden_weights(*model, at::kDouble));
    attach_gradients(*model);
    const ModelInput input = numbered_input(config, 2, 2, 3);
    model->forward(input, {}, HeadOutput::kLoss).terms.at(0).objective.backward();
    const at::NoGradGuard no_grad;
    uint64_t number = 0;
    for (Parameter* parameter : model->parameters()) {
      const at::Tensor value = parameter->data(), kept = value.clone();
      const at::Tensor direction = units(2000 + number++, value.sizes().vec());
      constexpr double kStep = 1e-5;
      value.copy_(kept + kStep * direction);
      const double above = loss_of(*model, input);
      value.copy_(kept - kStep * direction);
      const double below = loss_of(*model, input);
      value.copy_(kept);
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR((parameter->grad() * direction).sum().item<double>(), expected, 1e-6 * (1 + std::abs(expected)))
          << parameter->name();
    }
    EXPECT_GT(number, 40U);
  }
}

// Published: 10.35 TFLOP for 256 pixels and 512 tokens of text, 21.5 for 512 pixels, 74.4 for 1024.
TEST(Flux, APassCostsWhatIsPublished) {
  const Groups groups = Groups::single();
  LayerContext context = tiny_context(groups, at::kBFloat16);
  context.device = at::kMeta;
  const auto model = build_model(published_flux(), context);
  const auto teraflops = [&](int64_t pixels, int64_t text) {
    return model->forward_flops({.b = 1, .s = (pixels / 16) * (pixels / 16), .encoder_s = text}) * 1e-12;
  };
  EXPECT_NEAR(teraflops(256, 256), 6.81, 0.02);
  EXPECT_NEAR(teraflops(256, 512), 10.35, 0.03);
  EXPECT_NEAR(teraflops(512, 512), 21.5, 0.06);
  EXPECT_NEAR(teraflops(1024, 512), 74.4, 0.2);
}

TEST(Flux, AnEmbeddingIsCosinesAndThenSines) {
  const at::Tensor e = timestep_embedding(at::full({1}, 0.5, at::kFloat), 256, at::kFloat)[0];
  const std::vector<std::pair<int64_t, double>> expected = {{0, -.88384926}, {1, .94594574},  {127, .99855685},
                                                            {128, -.4677718}, {129, .32432494}, {255, .05370453}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(e[i].item<double>(), value, 1e-4) << i;
}

TEST(Flux, AnglesOfAnAxisFollowThoseBeforeIt) {
  const FluxOptions options;
  const RotaryAngles angles = flux_angles(image_positions(2, 3), options, at::kBFloat16);
  ASSERT_EQ(angles.cos.sizes(), at::IntArrayRef({1, 6, 64}));
  EXPECT_EQ(angles.cos.scalar_type(), at::kFloat);
  const at::Tensor last = angles.sin[0][5];  // row 1, column 2
  EXPECT_EQ(last[7].item<double>(), 0);      // the text's axis
  EXPECT_NEAR(last[8].item<double>(), std::sin(1.0), 1e-7);
  EXPECT_NEAR(last[9].item<double>(), std::sin(std::pow(1e4, -2.0 / 56)), 1e-7);
  EXPECT_NEAR(last[36].item<double>(), std::sin(2.0), 1e-7);
}

TEST(Flux, LatentsArePackedChannelRowColumn) {
  const at::Tensor latents = at::arange(2 * 3 * 4 * 6, at::kFloat).view({2, 3, 4, 6});
  const at::Tensor packed = pack_latents(latents);
  ASSERT_EQ(packed.sizes(), at::IntArrayRef({2, 6, 12}));
  // Token 4 is row 1, column 1; its number 7 is channel 1, row 1, column 1 of the four.
  EXPECT_EQ(packed[1][4][7].item<float>(), latents[1][1][3][3].item<float>());
  EXPECT_TRUE(at::equal(unpack_latents(packed, 4, 6), latents));
  EXPECT_TRUE(at::equal(image_positions(2, 3)[5], at::tensor({0, 1, 2}, at::kLong)));
}

TEST(Flux, FilesSayTheWholeOfIt) {
  ModelConfig config = published_flux();
  config.guidance_embed = true;
  const ModelFamily& family = family_for(config);
  EXPECT_EQ(family.name, "flux");
  const ModelConfig again = family.from_hf(make_hf_config(family, config, at::kBFloat16));
  EXPECT_EQ(again.num_single_layers, 38);
  EXPECT_TRUE(again.guidance_embed);
  EXPECT_EQ(again.hidden_size, 3072);
  // Diffusers' class has no such number.
  config.theta = 1000;
  EXPECT_EQ(family_for(config).name, "flux_like");
}

TEST(Flux, RulesAreToldAllAtOnce) {
  ModelConfig config = published_flux();
  config.axes_dim = {16, 56, 58};
  config.num_experts = 4;
  config.vocab_size = 100;
  config.hidden_dropout = 0;  // as FLUX has it: no error
  const std::vector<UserError> errors = check_model_config(config);
  EXPECT_EQ(errors.size(), 3U);
  ModelConfig text = tiny_config();
  text.num_joint_layers = 2;
  ASSERT_EQ(check_model_config(text).size(), 1U);
  EXPECT_NE(check_model_config(text)[0].message().find("num_joint_layers is for model_type diffusion_model"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith
