// What of pictures and captions a run reads.
#pragma once

#include <cstdint>
#include <string_view>

#include "config/option.h"

namespace megalith {

// What of the autoencoder's posterior prepared data hold.
enum class VaeLatentMode {
  kPresampled,  // one draw, made ahead: half the bytes
  kResample,    // mean and log-variance, so that each use draws anew
};
std::string_view name_of(VaeLatentMode mode);  // "presampled"

// The mode that a run insists on.
enum class VaeLatentModeAsked { kAuto, kPresampled, kResample };

struct FluxDataOptions {
  int64_t image_size = 512;   // pixels of each side
  int64_t text_length = 512;  // tokens of a caption, as T5 reads it
  VaeLatentModeAsked vae_latent_mode = VaeLatentModeAsked::kAuto;

  void visit(OptionVisitor& v);
  // Tokens of a picture, each of 16 x 16 pixels.
  int64_t image_tokens() const { return (image_size / 16) * (image_size / 16); }
};

}  // namespace megalith
