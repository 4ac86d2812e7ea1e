#include "models/autoencoder.h"

#include <ATen/ATen.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace {

constexpr double kAutoencoderEpsilon = 1e-6;
constexpr int64_t kMostLevels = 8, kMostLevelLayers = 64, kMostChannels = 1 << 14;

// Two convolutions and a shortcut (1x1 convolution where the width changes).
class ResidualBlock : public FrozenModule {
 public:
  ResidualBlock(const FrozenContext& context, const std::string& name, int64_t in, int64_t out, int64_t groups)
      : norm1_(context, name + ".norm1", in, groups, kAutoencoderEpsilon),
        conv1_(context, name + ".conv1", in, out, 3, 1, 1),
        norm2_(context, name + ".norm2", out, groups, kAutoencoderEpsilon),
        conv2_(context, name + ".conv2", out, out, 3, 1, 1) {
    for (Module* child : std::initializer_list<Module*>{&norm1_, &conv1_, &norm2_, &conv2_}) register_module(*child);
    if (in == out) return;
    shortcut_ = std::make_unique<FrozenConv>(context, name + ".conv_shortcut", in, out, 1);
    register_module(*shortcut_);
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor inner = conv1_.forward(at::silu(norm1_.forward(x)));
    const at::Tensor outer = conv2_.forward(at::silu(norm2_.forward(inner)));
    return (shortcut_ ? shortcut_->forward(x) : x) + outer;
  }

 private:
  FrozenGroupNorm norm1_;
  FrozenConv conv1_;
  FrozenGroupNorm norm2_;
  FrozenConv conv2_;
  std::unique_ptr<FrozenConv> shortcut_;
};

// Full attention over positions, one head as wide as the level.
class PixelAttention : public FrozenModule {
 public:
  PixelAttention(const FrozenContext& context, const std::string& name, int64_t channels, int64_t groups)
      : norm_(context, name + ".group_norm", channels, groups, kAutoencoderEpsilon),
        q_(context, name + ".to_q", channels, channels),
        k_(context, name + ".to_k", channels, channels),
        v_(context, name + ".to_v", channels, channels),
        out_(context, name + ".to_out.0", channels, channels) {
    for (Module* child : std::initializer_list<Module*>{&norm_, &q_, &k_, &v_, &out_}) register_module(*child);
  }

  at::Tensor forward(const at::Tensor& x) const {
    const int64_t b = x.size(0), c = x.size(1);
    const at::Tensor states = norm_.forward(x).view({b, c, -1}).transpose(1, 2).unsqueeze(1);  // (b, 1, h w, c)
    const at::Tensor seen =
        at::scaled_dot_product_attention(q_.forward(states), k_.forward(states), v_.forward(states));
    return x + out_.forward(seen.squeeze(1)).transpose(1, 2).reshape(x.sizes());
  }

 private:
  FrozenGroupNorm norm_;
  FrozenLinear q_, k_, v_, out_;
};

class Middle : public FrozenModule {
 public:
  Middle(const FrozenContext& context, const std::string& name, int64_t channels, int64_t groups)
      : before_(context, name + ".resnets.0", channels, channels, groups),
        attention_(context, name + ".attentions.0", channels, groups),
        after_(context, name + ".resnets.1", channels, channels, groups) {
    for (Module* child : std::initializer_list<Module*>{&before_, &attention_, &after_}) register_module(*child);
  }

  at::Tensor forward(const at::Tensor& x) const {
    return after_.forward(attention_.forward(before_.forward(x)));
  }

 private:
  ResidualBlock before_;
  PixelAttention attention_;
  ResidualBlock after_;
};

// The residual blocks of one width, then the convolution that halves or doubles the sides.
class Level : public FrozenModule {
 public:
  enum class Resize { kNone, kHalve, kDouble };

  Level(const FrozenContext& context, const std::string& name, int64_t in, int64_t out, int64_t num_blocks,
        int64_t groups, Resize resize)
      : resize_(resize) {
    for (int64_t i = 0; i < num_blocks; ++i) {
      blocks_.push_back(std::make_unique<ResidualBlock>(context, fmt::format("{}.resnets.{}", name, i),
                                                        i == 0 ? in : out, out, groups));
      register_module(*blocks_.back());
    }
    if (resize == Resize::kNone) return;
    const bool halves = resize == Resize::kHalve;
    conv_ = std::make_unique<FrozenConv>(context, name + (halves ? ".downsamplers.0.conv" : ".upsamplers.0.conv"), out,
                                         out, 3, halves ? 2 : 1, halves ? 0 : 1);
    register_module(*conv_);
  }

  at::Tensor forward(at::Tensor x) const {
    for (const auto& block : blocks_) x = block->forward(x);
    if (resize_ == Resize::kNone) return x;
    // Trained with zero padding right and below only; doubling repeats each pixel.
    if (resize_ == Resize::kHalve) return conv_->forward(at::constant_pad_nd(x, {0, 1, 0, 1}));
    return conv_->forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}));
  }

 private:
  Resize resize_;
  std::vector<std::unique_ptr<ResidualBlock>> blocks_;
  std::unique_ptr<FrozenConv> conv_;
};

class Encoder : public FrozenModule {
 public:
  Encoder(const AutoencoderConfig& config, const FrozenContext& context)
      : conv_in_(context, "encoder.conv_in", config.in_channels, config.block_out_channels.front(), 3, 1, 1),
        middle_(context, "encoder.mid_block", config.block_out_channels.back(), config.norm_num_groups),
        norm_out_(context, "encoder.conv_norm_out", config.block_out_channels.back(), config.norm_num_groups,
                  kAutoencoderEpsilon),
        conv_out_(context, "encoder.conv_out", config.block_out_channels.back(), 2 * config.latent_channels, 3, 1, 1) {
    const std::vector<int64_t>& widths = config.block_out_channels;
    register_module(conv_in_);
    for (size_t i = 0; i < widths.size(); ++i) {
      levels_.push_back(std::make_unique<Level>(context, fmt::format("encoder.down_blocks.{}", i),
                                                widths[i == 0 ? 0 : i - 1], widths[i], config.layers_per_block,
                                                config.norm_num_groups,
                                                i + 1 < widths.size() ? Level::Resize::kHalve : Level::Resize::kNone));
      register_module(*levels_.back());
    }
    for (Module* child : std::initializer_list<Module*>{&middle_, &norm_out_, &conv_out_}) register_module(*child);
  }

  at::Tensor forward(const at::Tensor& pixels) const {
    at::Tensor x = conv_in_.forward(pixels);
    for (const auto& level : levels_) x = level->forward(x);
    return conv_out_.forward(at::silu(norm_out_.forward(middle_.forward(x))));
  }

 private:
  FrozenConv conv_in_;
  std::vector<std::unique_ptr<Level>> levels_;
  Middle middle_;
  FrozenGroupNorm norm_out_;
  FrozenConv conv_out_;
};

class Decoder : public FrozenModule {
 public:
  Decoder(const AutoencoderConfig& config, const FrozenContext& context)
      : conv_in_(context, "decoder.conv_in", config.latent_channels, config.block_out_channels.back(), 3, 1, 1),
        middle_(context, "decoder.mid_block", config.block_out_channels.back(), config.norm_num_groups),
        norm_out_(context, "decoder.conv_norm_out", config.block_out_channels.front(), config.norm_num_groups,
                  kAutoencoderEpsilon),
        conv_out_(context, "decoder.conv_out", config.block_out_channels.front(), config.out_channels, 3, 1, 1) {
    const std::vector<int64_t> widths(config.block_out_channels.rbegin(), config.block_out_channels.rend());
    register_module(conv_in_);
    register_module(middle_);
    for (size_t i = 0; i < widths.size(); ++i) {
      levels_.push_back(std::make_unique<Level>(context, fmt::format("decoder.up_blocks.{}", i),
                                                widths[i == 0 ? 0 : i - 1], widths[i], config.layers_per_block + 1,
                                                config.norm_num_groups,
                                                i + 1 < widths.size() ? Level::Resize::kDouble : Level::Resize::kNone));
      register_module(*levels_.back());
    }
    register_module(norm_out_);
    register_module(conv_out_);
  }

  at::Tensor forward(const at::Tensor& latents) const {
    at::Tensor x = middle_.forward(conv_in_.forward(latents));
    for (const auto& level : levels_) x = level->forward(x);
    return conv_out_.forward(at::silu(norm_out_.forward(x)));
  }

 private:
  FrozenConv conv_in_;
  Middle middle_;
  std::vector<std::unique_ptr<Level>> levels_;
  FrozenGroupNorm norm_out_;
  FrozenConv conv_out_;
};

void check_blocks(const Json& json, std::string_view key, std::string_view expected, std::string_view where,
                  std::vector<UserError>& errors) {
  for (const std::string& type : json_get_or<std::vector<std::string>>(json, key, {}, where)) {
    if (type == expected) continue;
    errors.emplace_back(fmt::format("{}: {} has \"{}\", and only \"{}\" can be honoured", where, key, type, expected),
                        "give the autoencoder that belongs to FLUX");
    return;
  }
}

}  // namespace

AutoencoderConfig read_autoencoder_config(const Json& json, std::string_view where) {
  AutoencoderConfig config;
  std::vector<UserError> errors;
  const auto class_name = json_get_or<std::string>(json, "_class_name", "AutoencoderKL", where);
  if (class_name != "AutoencoderKL") {
    throw UserError(fmt::format("{}: _class_name is \"{}\", expected \"AutoencoderKL\"", where, class_name),
                    "give the folder of the autoencoder: `vae` in a FLUX folder");
  }
  const auto size = [&](std::string_view key, int64_t fallback, int64_t most) {
    const auto value = json_get_or<int64_t>(json, key, fallback, where);
    if (value >= 1 && value <= most) return value;
    errors.emplace_back(fmt::format("{}: {} is {}, expected 1 to {}", where, key, value, most), "correct the file");
    return int64_t{1};
  };
  // The class's defaults.
  config.in_channels = size("in_channels", 3, kMostChannels);
  config.out_channels = size("out_channels", 3, kMostChannels);
  config.latent_channels = size("latent_channels", 4, kMostChannels);
  config.layers_per_block = size("layers_per_block", 1, kMostLevelLayers);
  config.norm_num_groups = size("norm_num_groups", 32, kMostChannels);
  config.scaling_factor = json_get_or<double>(json, "scaling_factor", 0.18215, where);
  config.shift_factor = json_get_or<double>(json, "shift_factor", 0.0, where);
  config.block_out_channels = json_get_or<std::vector<int64_t>>(json, "block_out_channels", {64}, where);
  if (config.block_out_channels.empty() || std::ssize(config.block_out_channels) > kMostLevels) {
    errors.emplace_back(fmt::format("{}: block_out_channels has {} numbers, expected 1 to {}", where,
                                    config.block_out_channels.size(), kMostLevels),
                        "correct the file");
  }
  for (const int64_t width : config.block_out_channels) {
    if (width >= 1 && width <= kMostChannels && width % config.norm_num_groups == 0) continue;
    errors.emplace_back(fmt::format("{}: block_out_channels has {}, expected a multiple of norm_num_groups {} up to {}",
                                    where, width, config.norm_num_groups, kMostChannels),
                        "correct the file");
  }
  if (!(config.scaling_factor > 0)) {
    errors.emplace_back(fmt::format("{}: scaling_factor is {}", where, config.scaling_factor),
                        "it must be above 0");
  }
  check_blocks(json, "down_block_types", "DownEncoderBlock2D", where, errors);
  check_blocks(json, "up_block_types", "UpDecoderBlock2D", where, errors);
  const auto must_be = [&](std::string_view key, bool fallback, bool honoured) {
    if (json_get_or<bool>(json, key, fallback, where) == honoured) return;
    errors.emplace_back(fmt::format("{}: {} is {}, and only {} can be honoured", where, key, !honoured, honoured),
                        "give the autoencoder that belongs to FLUX");
  };
  must_be("use_quant_conv", true, false);
  must_be("use_post_quant_conv", true, false);
  must_be("mid_block_add_attention", true, true);
  if (const auto act = json_get_or<std::string>(json, "act_fn", "silu", where); act != "silu") {
    errors.emplace_back(fmt::format("{}: act_fn is \"{}\", and only \"silu\" can be honoured", where, act),
                        "give the autoencoder that belongs to FLUX");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

struct AutoencoderParts {
  Encoder encoder;
  Decoder decoder;
};

Autoencoder::Autoencoder(const AutoencoderConfig& config, const FrozenContext& context)
    : config_(config), parts_(new AutoencoderParts{Encoder(config, context), Decoder(config, context)}) {
  register_module(parts_->encoder);
  register_module(parts_->decoder);
}

Autoencoder::~Autoencoder() = default;

Autoencoder::Posterior Autoencoder::encode(const at::Tensor& pixels) const {
  const int64_t side = config_.reduction();
  MEGALITH_CHECK(pixels.dim() == 4 && pixels.size(2) % side == 0 && pixels.size(3) % side == 0,
                 "pictures of whole latents: {} divides neither side, or one", side);
  const std::vector<at::Tensor> halves = parts_->encoder.forward(pixels).chunk(2, 1);
  return {halves[0], halves[1].clamp(-30, 20)};
}

at::Tensor Autoencoder::decode(const at::Tensor& latents) const { return parts_->decoder.forward(latents); }

std::string single_file_name(std::string_view diffusers_name, int64_t num_levels) {
  std::string name(diffusers_name);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kWords = {{
      {".down_blocks.", ".down."},
      {".mid_block.resnets.0.", ".mid.block_1."},
      {".mid_block.resnets.1.", ".mid.block_2."},
      {".mid_block.attentions.0.group_norm.", ".mid.attn_1.norm."},
      {".mid_block.attentions.0.to_q.", ".mid.attn_1.q."},
      {".mid_block.attentions.0.to_k.", ".mid.attn_1.k."},
      {".mid_block.attentions.0.to_v.", ".mid.attn_1.v."},
      {".mid_block.attentions.0.to_out.0.", ".mid.attn_1.proj_out."},
      {".resnets.", ".block."},
      {".conv_shortcut.", ".nin_shortcut."},
      {".downsamplers.0.", ".downsample."},
      {".upsamplers.0.", ".upsample."},
      {".conv_norm_out.", ".norm_out."},
  }};
  for (const auto& [theirs, single] : kWords) {
    if (const size_t at = name.find(theirs); at != std::string::npos) name.replace(at, theirs.size(), single);
  }
  constexpr std::string_view kUp = ".up_blocks.";
  if (const size_t at = name.find(kUp); at != std::string::npos) {
    int64_t level = 0;
    const char* const number = name.data() + at + kUp.size();
    const char* const end = std::from_chars(number, name.data() + name.size(), level).ptr;
    const auto length = static_cast<size_t>(end - number);
    name.replace(at, kUp.size() + length, fmt::format(".up.{}", num_levels - 1 - level));
  }
  return name;
}

}  // namespace megalith
