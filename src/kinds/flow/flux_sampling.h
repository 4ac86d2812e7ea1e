// Rectified flow: latents from noise by Euler steps.
//
//   sigma_i  falls from 1 to 1 / steps linearly, then 0; shifted towards 1 with the number of image tokens
//   x       += (sigma_{i+1} - sigma_i) * velocity(x, sigma_i)
//
// Source: Esser et al. 2024, arXiv:2403.03206; diffusers' schedulers/scheduling_flow_match_euler_discrete.py and
// pipelines/flux/pipeline_flux.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace megalith {

// The shift of sigmas: sigma' = e^mu / (e^mu + 1 / sigma - 1). Defaults are FLUX.1-dev's.
struct FlowSchedule {
  bool is_dynamic = true;  // mu grows with the picture; else sigma' = shift * sigma / (1 + (shift - 1) * sigma)
  double shift = 1;        // FLUX.1-schnell's: no shift
  // mu is linear in packed image tokens: base_shift at base_tokens, max_shift at max_tokens, extrapolated.
  double base_shift = 0.5, max_shift = 1.15;
  int64_t base_tokens = 256, max_tokens = 4096;

  double mu(int64_t tokens) const;
  // steps + 1 values, descending to 0.
  std::vector<double> sigmas(int64_t steps, int64_t tokens) const;
};

// From FOLDER/scheduler/scheduler_config.json of a FLUX folder. UserErrors for other schedules.
//   otherwise  the result without such a file
FlowSchedule read_flow_schedule(const std::filesystem::path& folder, const FlowSchedule& otherwise);

// A picture's noise, (1, channels, height, width) fp32 on the CPU, determined by seed and number.
at::Tensor flow_noise(uint64_t seed, uint64_t number, int64_t channels, int64_t height, int64_t width);

// velocity(x, sigma) has x's shape, in any floating dtype; steps are in fp32. on_step receives the number of steps
// made.
at::Tensor sample_flow(const at::Tensor& noise, const std::vector<double>& sigmas,
                       const std::function<at::Tensor(const at::Tensor& x, double sigma)>& velocity,
                       const std::function<void(int64_t)>& on_step = {});

}  // namespace megalith
