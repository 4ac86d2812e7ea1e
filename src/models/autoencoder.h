// The autoencoder of an image model: pictures to latents of an eighth of their sides, and back. Frozen.
//
//   encode  conv, residual blocks by level (each level but the last halves the sides), middle, norm, conv
//   decode  mirrored, with one more residual block a level; sides double by repeating pixels
//
// The encoder gives each latent's normal distribution: mean and log variance. Names are diffusers' (AutoencoderKL);
// single_file_name() gives those of Black Forest Labs' files (ae.safetensors).
// Source: Kingma & Welling 2013, arXiv:1312.6114; Rombach et al. 2022, arXiv:2112.10752; diffusers'
// models/autoencoders/{autoencoder_kl,vae}.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/frozen_layers.h"

namespace megalith {

// The defaults are FLUX.1's.
struct AutoencoderConfig {
  int64_t in_channels = 3, out_channels = 3;
  int64_t latent_channels = 16;
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};
  int64_t layers_per_block = 2;  // residual blocks of an encoder level
  int64_t norm_num_groups = 32;
  // Models of latents see (latent - shift) * scale.
  double scaling_factor = 0.3611, shift_factor = 0.1159;

  // Side of the pixel square that becomes one latent.
  int64_t reduction() const { return int64_t{1} << (block_out_channels.size() - 1); }
};

// From diffusers' config.json. Throws all UserErrors at once: values not supported, sizes out of bounds.
//   where  names the file
AutoencoderConfig read_autoencoder_config(const nlohmann::json& json, std::string_view where);

struct AutoencoderParts;  // autoencoder.cc

class Autoencoder : public Module {
 public:
  Autoencoder(const AutoencoderConfig& config, const FrozenContext& context);
  ~Autoencoder() override;

  struct Posterior {
    at::Tensor mean, log_var;  // (b, latent_channels, H / reduction, W / reduction), dtype of the weights
  };
  // pixels (b, in_channels, H, W) in [-1, 1], dtype of the weights; reduction() divides H and W. Clamps log_var to
  // [-30, 20].
  Posterior encode(const at::Tensor& pixels) const;
  // latents (b, latent_channels, h, w), not shifted or scaled -> (b, out_channels, h * reduction, w * reduction)
  at::Tensor decode(const at::Tensor& latents) const;
  const AutoencoderConfig& config() const { return config_; }

 private:
  AutoencoderConfig config_;
  std::unique_ptr<AutoencoderParts> parts_;
};

// Black Forest Labs' name of this diffusers tensor.
//   num_levels  of the autoencoder: their files count the decoder's levels from the other end
std::string single_file_name(std::string_view diffusers_name, int64_t num_levels);
// The first tensor only their files have.
inline constexpr std::string_view kSingleFileMark = "encoder.down.0.block.0.norm1.weight";

}  // namespace megalith
