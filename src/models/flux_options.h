// Options of a rectified-flow transformer of pictures: FLUX.1, with model_type diffusion_model. Names are Primus's.
#pragma once

#include <cstdint>
#include <vector>

#include "config/option.h"

namespace megalith {

struct FluxOptions {
  int64_t num_joint_layers = 0, num_single_layers = 0;  // blocks on two streams, and those behind them on one
  int64_t in_channels = 64;                             // of a packed token, in and out
  int64_t context_dim = 4096;                           // of a state of the text (T5)
  int64_t vec_in_dim = 768;                             // of a text's pooled vector (CLIP)
  int64_t model_channels = 256;                         // of the embedding of timestep and guidance
  std::vector<int64_t> axes_dim = {16, 56, 56};         // of a head's channels: rotated by text, row and column
  double theta = 10000;                                 // their rotary base
  bool guidance_embed = false;
  int64_t patch_size = 1;  // of packed latents

  void visit_flux(OptionVisitor& v);
};

}  // namespace megalith
