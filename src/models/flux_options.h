// Options of FLUX.1 (model_type diffusion_model), a rectified-flow transformer of pictures. Names are Primus's.
#pragma once

#include <cstdint>
#include <vector>

#include "config/option.h"

namespace megalith {

struct FluxOptions {
  int64_t num_joint_layers = 0, num_single_layers = 0;  // blocks on two streams, then on one
  int64_t in_channels = 64;                             // of a packed token, in and out
  int64_t context_dim = 4096;                           // width of a text state (T5)
  int64_t vec_in_dim = 768;                             // width of the pooled text vector (CLIP)
  int64_t model_channels = 256;                         // width of the timestep and guidance embedding
  std::vector<int64_t> axes_dim = {16, 56, 56};         // of a head's channels: rotated by text, row and column
  double theta = 10000;
  bool guidance_embed = false;
  int64_t patch_size = 1;  // of packed latents

  void visit_flux(OptionVisitor& v);
};

}  // namespace megalith
