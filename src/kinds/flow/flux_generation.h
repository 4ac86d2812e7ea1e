// Pictures from captions: FLUX's encoders, model and Euler steps combined.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "kinds/flow/flux_encoders.h"
#include "kinds/flow/flux_sampling.h"
#include "models/model.h"

namespace megalith {

struct PictureRequest {
  int64_t height = 1024, width = 1024;  // pixels
  int64_t steps = 28;         // default_steps()
  double guidance = 3.5;      // for models with a guidance embedder
  bool has_guidance = false;  // the model's
  uint64_t seed = 1234;
  FlowSchedule schedule;
};

inline constexpr int64_t kFluxReduction = 8;  // pixels per latent, per side

// For FLUX.1-dev and FLUX.1-schnell.
constexpr int64_t default_steps(bool has_guidance) { return has_guidance ? 28 : 4; }

// Errors, by option names, for sizes that are not multiples of 2 * reduction (one packed token) or are unreasonably
// large.
//   reduction  pixels per latent, per side
std::vector<UserError> check_picture_request(const PictureRequest& request, int64_t reduction);

// Latents for the autoencoder's decode, (1, channels, height / reduction, width / reduction) fp32.
//   predict   the velocity (1, tokens, 4 * channels) of a one-picture microbatch (models/flux.h); called once a step
//   texts     of one caption, on the model's device
//   number    the picture's: selects its noise
//   channels  of a latent
at::Tensor generate_latents(const std::function<at::Tensor(const ModelInput&)>& predict,
                            const FluxEncoders::Texts& texts, const PictureRequest& request, uint64_t number,
                            int64_t channels, int64_t reduction, at::Device device,
                            const std::function<void(int64_t)>& on_step = {});

}  // namespace megalith
