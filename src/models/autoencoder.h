// The autoencoder of an image model: pictures to latents of an eighth of their sides, and back. Frozen.
//
//   encode  conv, a level a width of residual blocks (each but the last halves the sides), middle, norm, conv
//   decode  the same mirrored, with a residual block more a level; sides double by repeating pixels
//
// The encoder gives a normal distribution for each latent: mean and logarithm of the variance. Names are those of
// diffusers' AutoencoderKL; files of Black Forest Labs (ae.safetensors) have others, which single_file_name() gives.
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
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};  // width of each level
  int64_t layers_per_block = 2;                                    // residual blocks of a level of the encoder
  int64_t norm_num_groups = 32;
  // What a model of latents sees: (latent - shift) * scale.
  double scaling_factor = 0.3611, shift_factor = 0.1159;

  // Pixels of a side that become one latent.
  int64_t reduction() const { return int64_t{1} << (block_out_channels.size() - 1); }
};

// From diffusers' config.json. UserErrors, all at once, for what cannot be honoured and for sizes out of bounds.
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
  // pixels (b, in_channels, H, W) in [-1, 1], dtype of the weights; reduction() divides H and W. log_var is held to
  // [-30, 20].
  Posterior encode(const at::Tensor& pixels) const;
  // latents (b, latent_channels, h, w), neither shifted nor scaled -> (b, out_channels, h * reduction, w * reduction)
  at::Tensor decode(const at::Tensor& latents) const;
  const AutoencoderConfig& config() const { return config_; }

 private:
  AutoencoderConfig config_;
  std::unique_ptr<AutoencoderParts> parts_;
};

// What a file of Black Forest Labs calls the tensor of this name in diffusers.
//   num_levels  of the autoencoder: such files count the decoder's from the other end
std::string single_file_name(std::string_view diffusers_name, int64_t num_levels);
// The first tensor of such a file that diffusers' files have not.
inline constexpr std::string_view kSingleFileMark = "encoder.down.0.block.0.norm1.weight";

}  // namespace megalith
