#include "kinds/flow/flux_generation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "models/flux.h"
#include "models/flux_latents.h"

namespace megalith {
namespace {

constexpr int64_t kMostSide = 1 << 14, kMostSteps = 10000;

}  // namespace

std::vector<UserError> check_picture_request(const PictureRequest& request, int64_t reduction) {
  std::vector<UserError> errors;
  const int64_t unit = 2 * reduction;
  const auto check_side = [&](std::string_view name, int64_t pixels) {
    if (pixels >= unit && pixels <= kMostSide && pixels % unit == 0) return;
    const int64_t lower = std::clamp(pixels / unit * unit, unit, kMostSide);
    errors.emplace_back(fmt::format("{} is {}, expected a multiple of {} up to {}", name, pixels, unit, kMostSide),
                        fmt::format("give --{} {}: {} pixels are one token of the model", name, lower, unit));
  };
  check_side("height", request.height);
  check_side("width", request.width);
  if (request.steps < 1 || request.steps > kMostSteps) {
    errors.emplace_back(fmt::format("steps is {}, expected 1 to {}", request.steps, kMostSteps),
                        "FLUX.1-dev takes 28, FLUX.1-schnell 4");
  }
  if (!(request.guidance >= 0)) {
    errors.emplace_back(fmt::format("guidance is {}", request.guidance), "it must be 0 or more; FLUX.1-dev takes 3.5");
  }
  return errors;
}

at::Tensor generate_latents(const std::function<at::Tensor(const ModelInput&)>& predict,
                            const FluxEncoders::Texts& texts, const PictureRequest& request, uint64_t number,
                            int64_t channels, int64_t reduction, at::Device device,
                            const std::function<void(int64_t)>& on_step) {
  const at::NoGradGuard no_grad;
  const int64_t h = request.height / reduction, w = request.width / reduction;
  const at::Tensor noise = pack_latents(flow_noise(request.seed, number, channels, h, w)).to(device);
  const int64_t tokens = noise.size(1);
  ModelInput input;
  input.context.b = 1;
  input.context.s = tokens;
  input.context.encoder_s = texts.states.size(1);
  input.context.is_training = false;
  input.more.set(input::kText.name, texts.states.to(device));
  input.more.set(input::kPooledText.name, texts.pooled.to(device));
  input.more.set(input::kImagePositions.name, image_positions(h / 2, w / 2).to(device));
  const auto one_number = [&](double value) {
    return at::full({1}, value, at::TensorOptions(device).dtype(at::kFloat));
  };
  if (request.has_guidance) input.more.set(input::kGuidance.name, one_number(request.guidance));
  const auto velocity = [&](const at::Tensor& x, double sigma) {
    ModelInput step = input;
    step.more.set(input::kImage.name, x);
    step.more.set(input::kTimesteps.name, one_number(sigma));
    return predict(step);
  };
  const at::Tensor packed = sample_flow(noise, request.schedule.sigmas(request.steps, tokens), velocity, on_step);
  return unpack_latents(packed, h, w);
}

}  // namespace megalith
