// The autoencoder and CLIP's text encoder against numbers of diffusers and transformers; sizes of those published.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/autoencoder.h"
#include "models/clip_text.h"
#include "models/families.h"
#include "models/states_units.h"
#include "models/tiny_models.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

at::Tensor golden_input(uint64_t tensor, at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  for (int64_t j = 0; j < values.numel(); ++j) {
    out[j] = static_cast<float>(unit_value(tensor, static_cast<uint64_t>(j)));
  }
  return values;
}

at::Tensor first(const at::Tensor& values, int64_t count) { return values.reshape({-1}).slice(0, 0, count); }

AutoencoderConfig small_autoencoder() {
  AutoencoderConfig config;
  config.block_out_channels = {32, 64};
  config.layers_per_block = 1;
  config.latent_channels = 4;
  return config;
}

// Relative to the largest: the numbers have six digits.
constexpr double kGolden = 1e-5;

TEST(Autoencoder, EqualsTheGoldenRow) {
  const Autoencoder model(small_autoencoder(), {});
  load(model, golden_weights(model, at::kFloat));
  const Autoencoder::Posterior posterior = model.encode(golden_input(1000, {1, 3, 16, 16}));
  const at::Tensor mean = at::tensor({.271265, .0756237, .118986, .598589});
  const at::Tensor log_var = at::tensor({-.76774, 1.30753});
  const at::Tensor decoded = at::tensor({-.00637284, .0626348, -.351689, -.0905925});
  EXPECT_LT(relative_difference(first(posterior.mean, 4), mean), kGolden);
  EXPECT_LT(relative_difference(first(posterior.log_var, 2), log_var), kGolden);
  EXPECT_LT(relative_difference(first(model.decode(posterior.mean), 4), decoded), kGolden);
}

TEST(Autoencoder, HasThePublishedSizes) {
  const Autoencoder model({}, {.device = at::kMeta});
  EXPECT_EQ(model.num_parameters(), 83'819'683);
  EXPECT_EQ(model.config().reduction(), 8);
}

TEST(Autoencoder, NamesOfSingleFilesCountLevelsOfTheDecoderFromTheOtherEnd) {
  EXPECT_EQ(single_file_name("encoder.down_blocks.1.resnets.0.conv_shortcut.weight", 4),
            "encoder.down.1.block.0.nin_shortcut.weight");
  EXPECT_EQ(single_file_name("encoder.down_blocks.2.downsamplers.0.conv.bias", 4),
            "encoder.down.2.downsample.conv.bias");
  EXPECT_EQ(single_file_name("decoder.up_blocks.0.resnets.2.norm1.weight", 4), "decoder.up.3.block.2.norm1.weight");
  EXPECT_EQ(single_file_name("decoder.up_blocks.2.upsamplers.0.conv.weight", 4), "decoder.up.1.upsample.conv.weight");
  EXPECT_EQ(single_file_name("decoder.mid_block.attentions.0.to_out.0.bias", 4), "decoder.mid.attn_1.proj_out.bias");
  EXPECT_EQ(single_file_name("decoder.mid_block.resnets.1.conv2.bias", 4), "decoder.mid.block_2.conv2.bias");
  EXPECT_EQ(single_file_name("encoder.conv_norm_out.weight", 4), "encoder.norm_out.weight");
  EXPECT_EQ(single_file_name("encoder.conv_in.weight", 4), "encoder.conv_in.weight");
}

TEST(Autoencoder, RefusesWhatItCannotHonourAllAtOnce) {
  const auto errors_of = [](const std::string& text) -> std::vector<std::string> {
    try {
      read_autoencoder_config(parse_json(text, "config.json"), "config.json");
    } catch (const UserErrors& errors) {
      std::vector<std::string> messages;
      for (const UserError& error : errors.errors()) messages.push_back(error.message());
      return messages;
    }
    return {};
  };
  const std::string plain = R"("use_quant_conv": false, "use_post_quant_conv": false)";
  EXPECT_EQ(errors_of("{" + plain + "}"), std::vector<std::string>{});
  EXPECT_EQ(errors_of("{}"), (std::vector<std::string>{
                                 "config.json: use_quant_conv is true, and only false can be honoured",
                                 "config.json: use_post_quant_conv is true, and only false can be honoured"}));
  EXPECT_EQ(errors_of(R"({"block_out_channels": [32, 48, 9223372036854775807], "latent_channels": 0, )" + plain + "}"),
            (std::vector<std::string>{
                "config.json: latent_channels is 0, expected 1 to 16384",
                "config.json: block_out_channels has 48, expected a multiple of norm_num_groups 32 up to 16384",
                "config.json: block_out_channels has 9223372036854775807, expected a multiple of norm_num_groups 32 up "
                "to 16384"}));
}

TEST(ClipText, EqualsTheGoldenRow) {
  const ClipText model({.vocab_size = 128,
                        .hidden_size = 64,
                        .intermediate_size = 96,
                        .num_hidden_layers = 2,
                        .num_attention_heads = 4,
                        .max_position_embeddings = 16,
                        .eos_token_id = 92},
                       {});
  load(model, golden_weights(model, at::kFloat));
  const at::Tensor ids = at::tensor({3, 14, 15, 92, 65, 35, 89, 79}, at::kLong).unsqueeze(0);
  const at::Tensor pooled = at::tensor({.826485, .242863, -.125525, -.538731});
  EXPECT_LT(relative_difference(first(model.forward(ids).pooled, 4), pooled), kGolden);
}

TEST(ClipText, HasThePublishedSizes) {
  const ClipText model({}, {.device = at::kMeta});
  EXPECT_EQ(model.num_parameters(), 123'060'480);
}

TEST(T5Encoder, HasThePublishedSizes) {
  const Json json = parse_json(R"({"d_ff": 10240, "d_kv": 64, "d_model": 4096, "feed_forward_proj": "gated-gelu",
    "model_type": "t5", "num_heads": 64, "num_layers": 24, "num_decoder_layers": 24, "vocab_size": 32128,
    "tie_word_embeddings": false})", "config.json");
  for (const ModelFamily* family : model_families()) {
    if (family->hf_model_type != "t5") continue;
    const ModelConfig config = family->from_hf(json);
    const Groups groups = Groups::single();
    ModelPart part{.units = states_units(config, false)};
    part.range = {0, std::ssize(part.units)};
    LayerContext context;
    context.groups = &groups;
    context.device = at::kMeta;
    EXPECT_EQ(family->build(config, context, part)->num_parameters(), 4'762'310'656);
    return;
  }
  FAIL() << "no family reads T5's configuration";
}

}  // namespace
}  // namespace megalith
