// The frozen encoders around a FLUX model: pictures to latents and back (autoencoder), captions to T5's states and
// CLIP's pooled vector.
//
// Stored in a FLUX folder of Hugging Face (vae, text_encoder, text_encoder_2, tokenizer, tokenizer_2), or in separate
// folders. Captions are padded to fixed lengths without a mask, as FLUX was trained.
// Source: diffusers' pipelines/flux/pipeline_flux.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/log.h"
#include "train/flux_encoder_options.h"

namespace megalith {

class FluxEncoders {
 public:
  // UserErrors before weights are allocated: all missing encoders and tokenizers, tensors that do not fit. Every rank
  // opens its own.
  static std::unique_ptr<FluxEncoders> open(const FluxEncoderOptions& options, Logger& log);
  ~FluxEncoders();

  struct Texts {
    at::Tensor states;  // (b, text_length, T5's width)
    at::Tensor pooled;  // (b, CLIP's width)
  };
  // Long captions are cut before the end token, with one note.
  Texts encode_texts(std::span<const std::string> captions);

  struct Latents {
    at::Tensor mean, log_var;  // (b, c, H / reduction, W / reduction), unscaled
  };
  // pixels (b, 3, H, W) in [-1, 1]; latent_reduction() divides H and W
  Latents encode_pictures(const at::Tensor& pixels);
  // latents (b, c, h, w) as the model sees them -> pixels (b, 3, H, W), about -1 to 1
  at::Tensor decode(const at::Tensor& latents);

  // Frees T5 and CLIP; encode_texts() must not be called again.
  void release_text_encoders();

  // A model sees (latent - shift) * scale.
  double latent_scale() const;
  double latent_shift() const;
  int64_t latent_channels() const;
  int64_t latent_reduction() const;  // pixels per latent, per side
  // Encoder names with checksums of their weights as stored: "vae HEX, t5 HEX, clip HEX".
  std::string identity() const;

 private:
  struct Parts;
  explicit FluxEncoders(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace megalith
