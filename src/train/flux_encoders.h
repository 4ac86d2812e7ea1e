// The frozen encoders around a FLUX model: pictures to latents and back (autoencoder), captions to the states of T5's
// encoder and to CLIP's pooled vector.
//
// They lie in a FLUX folder as Hugging Face has it (vae, text_encoder, text_encoder_2, tokenizer, tokenizer_2), or in
// folders of their own. Captions are padded to fixed lengths and no mask hides the padding: FLUX was trained so.
// Source: diffusers' pipelines/flux/pipeline_flux.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "config/option.h"
#include "core/log.h"

namespace megalith {

struct FluxEncoderOptions {
  std::string folder;  // of a FLUX model; empty: each encoder has its own
  // A folder of AutoencoderKL, or a file with the names of Black Forest Labs (ae.safetensors).
  std::optional<std::string> vae;
  std::optional<std::string> t5;    // a folder of T5's encoder, with its tokenizer where it has one
  std::optional<std::string> clip;  // the same of CLIP
  int64_t text_length = 512;        // tokens of T5's; CLIP reads as many as it has positions
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  // vae.path, t5.path, clip.path
  void visit(OptionVisitor& v);
};

class FluxEncoders {
 public:
  // UserErrors, before memory is taken for weights: all encoders and tokenizers that are missing, tensors that do not
  // fit. Every rank opens its own.
  static std::unique_ptr<FluxEncoders> open(const FluxEncoderOptions& options, Logger& log);
  ~FluxEncoders();

  struct Texts {
    at::Tensor states;  // (b, text_length, width of T5)
    at::Tensor pooled;  // (b, width of CLIP)
  };
  // What is longer than the encoders read is cut in front of the token that ends a text; a note says so once.
  Texts encode_texts(std::span<const std::string> captions);

  struct Latents {
    at::Tensor mean, log_var;  // (b, c, H / reduction, W / reduction), not scaled
  };
  // pixels (b, 3, H, W) in [-1, 1]; latent_reduction() divides H and W
  Latents encode_pictures(const at::Tensor& pixels);
  // latents (b, c, h, w) as the model sees them -> pixels (b, 3, H, W), about -1 to 1
  at::Tensor decode(const at::Tensor& latents);

  // The memory of T5 and CLIP is given back: encode_texts() is not called again.
  void release_text_encoders();

  // A model sees (latent - shift) * scale.
  double latent_scale() const;
  double latent_shift() const;
  int64_t latent_channels() const;
  int64_t latent_reduction() const;  // pixels of a side that become one latent
  // Each encoder's name and a checksum of its weights, in the files' dtype: "vae HEX, t5 HEX, clip HEX".
  std::string identity() const;

 private:
  struct Parts;
  explicit FluxEncoders(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace megalith
