// Options of picture and caption data.
#pragma once

#include <cstdint>
#include <string_view>

#include "config/option.h"

namespace megalith {

// Form of the autoencoder's posterior in prepared data.
enum class VaeLatentMode {
  kPresampled,  // one draw, made ahead: half the bytes
  kResample,    // mean and log-variance; each use draws anew
};
std::string_view name_of(VaeLatentMode mode);  // "presampled"

// The mode a run requires.
enum class VaeLatentModeAsked { kAuto, kPresampled, kResample };

struct FluxDataOptions {
  int64_t image_size = 512;   // pixels a side
  int64_t text_length = 512;  // T5 tokens of a caption
  VaeLatentModeAsked vae_latent_mode = VaeLatentModeAsked::kAuto;

  void visit(OptionVisitor& v);
  // One token for 16 x 16 pixels.
  int64_t image_tokens() const { return (image_size / 16) * (image_size / 16); }
};

}  // namespace megalith
