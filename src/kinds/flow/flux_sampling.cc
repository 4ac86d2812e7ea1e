#include "kinds/flow/flux_sampling.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/philox.h"

namespace megalith {

double FlowSchedule::mu(int64_t tokens) const {
  const double slope = (max_shift - base_shift) / static_cast<double>(max_tokens - base_tokens);
  return base_shift + slope * static_cast<double>(tokens - base_tokens);
}

std::vector<double> FlowSchedule::sigmas(int64_t steps, int64_t tokens) const {
  MEGALITH_CHECK(steps >= 1, "{} steps", steps);
  const double factor = is_dynamic ? std::exp(mu(tokens)) : shift;
  std::vector<double> values;
  for (int64_t i = 0; i < steps; ++i) {
    const double sigma = static_cast<double>(steps - i) / static_cast<double>(steps);
    // e^mu / (e^mu + 1 / sigma - 1), which covers the other form with e^mu = shift.
    values.push_back(factor / (factor + 1 / sigma - 1));
  }
  values.push_back(0);
  return values;
}

FlowSchedule read_flow_schedule(const std::filesystem::path& folder, const FlowSchedule& otherwise) {
  const std::filesystem::path file = folder / "scheduler" / "scheduler_config.json";
  if (!std::filesystem::exists(file)) return otherwise;
  const std::string where = file.string();
  const Json json = load_json(file);
  std::vector<UserError> errors;
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    errors.emplace_back(fmt::format("{}: {}, and only {} can be honoured", where, found, expected),
                        "give the schedule that belongs to FLUX");
  };
  const auto name = json_get_or<std::string>(json, "_class_name", "FlowMatchEulerDiscreteScheduler", where);
  if (name != "FlowMatchEulerDiscreteScheduler") {
    refuse(fmt::format("_class_name is \"{}\"", name), "\"FlowMatchEulerDiscreteScheduler\"");
  }
  for (const char* key : {"invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                          "stochastic_sampling"}) {
    if (json_get_or(json, key, false, where)) refuse(fmt::format("{} is true", key), "false");
  }
  const auto form = json_get_or<std::string>(json, "time_shift_type", "exponential", where);
  if (form != "exponential") refuse(fmt::format("time_shift_type is \"{}\"", form), "\"exponential\"");
  if (json_get_or(json, "shift_terminal", 0.0, where) != 0) refuse("shift_terminal is set", "null");
  FlowSchedule schedule;
  // The class's defaults.
  schedule.is_dynamic = json_get_or(json, "use_dynamic_shifting", false, where);
  schedule.shift = json_get_or(json, "shift", 1.0, where);
  schedule.base_shift = json_get_or(json, "base_shift", 0.5, where);
  schedule.max_shift = json_get_or(json, "max_shift", 1.15, where);
  schedule.base_tokens = json_get_or<int64_t>(json, "base_image_seq_len", 256, where);
  schedule.max_tokens = json_get_or<int64_t>(json, "max_image_seq_len", 4096, where);
  if (!(schedule.shift > 0)) refuse(fmt::format("shift is {}", schedule.shift), "numbers above 0");
  if (schedule.base_tokens < 1 || schedule.max_tokens <= schedule.base_tokens) {
    refuse(fmt::format("max_image_seq_len is {} and base_image_seq_len {}", schedule.max_tokens, schedule.base_tokens),
           "a larger max_image_seq_len than base_image_seq_len");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return schedule;
}

at::Tensor flow_noise(uint64_t seed, uint64_t number, int64_t channels, int64_t height, int64_t width) {
  at::Tensor noise = at::empty({1, channels, height, width}, at::kFloat);
  fill_normal(make_philox_key(seed, "flux.sampling.noise"), 0, noise.mutable_data_ptr<float>(),
              static_cast<uint64_t>(noise.numel()), number);
  return noise;
}

at::Tensor sample_flow(const at::Tensor& noise, const std::vector<double>& sigmas,
                       const std::function<at::Tensor(const at::Tensor& x, double sigma)>& velocity,
                       const std::function<void(int64_t)>& on_step) {
  const at::NoGradGuard no_grad;
  at::Tensor x = noise.to(at::kFloat);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    x = x + (sigmas[i + 1] - sigmas[i]) * velocity(x, sigmas[i]).to(at::kFloat);
    if (on_step) on_step(static_cast<int64_t>(i) + 1);
  }
  return x;
}

}  // namespace megalith
