#include "train/device_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "core/error.h"
#include "core/strings.h"
#include "device/gpu_architecture.h"

namespace megalith {
namespace {

// Options without a fast form on the chip.
std::vector<std::string> reference_notes(const Resolved& resolved, const KnownGpu& gpu) {
  const Config& config = resolved.config;
  std::vector<std::string> notes;
  const auto add = [&](bool is_met, const std::string& words, std::string_view why) {
    if (is_met) notes.push_back(fmt::format("{} on {} ({}): {}", words, gpu.name, gpu.architecture, why));
  };
  if (config.fp8.is_on()) {
    const std::string words = config.fp8.words();
    add(!config.fp8.is_microscaled() && !has_fp8_products(gpu.architecture), words, "it does not multiply eight-bit numbers, and a run is refused");
    add(config.fp8.fp8_recipe == "blockwise" && gpu.architecture != "sm_90", "fp8_recipe blockwise",
        "no library multiplies such numbers, so they are multiplied in fp32, slower than bf16");
    add(config.model.has_experts(), words, "experts' products of rounded values are computed in fp32");
  }
  add(config.model.attn_logit_softcapping > 0, "attn_logit_softcapping", "attention is the reference, of s^2 memory");
  return notes;
}

}  // namespace

std::optional<UserError> check_dry_run_device(const std::string& device) {
  if (known_gpu(device)) return std::nullopt;
  return UserError(fmt::format("dry_run_device {} is no GPU whose memory is known", device),
                   fmt::format("use one of {}", fmt::join(known_gpu_names(), ", ")));
}

DeviceFit find_device_fit(const Resolved& resolved, const MemoryEstimate& estimate, const std::string& device,
                          const SpeedOf& speed_of) {
  const std::optional<KnownGpu> gpu = known_gpu(device);
  MEGALITH_CHECK(gpu, "dry_run_device {} was not checked", device);
  DeviceFit fit{.gpu = *gpu, .needed_bytes = estimate.on_device(), .savings = {}, .notes = {}};
  // Ada and Hopper read the rounded weights' transposes too; experts' products are the reference's.
  const bool reads_transposes = gpu->architecture == "sm_89" || gpu->architecture == "sm_90";
  if (reads_transposes && !resolved.config.fp8.is_microscaled() &&
      resolved.config.fp8.keep_fp8_weight_transpose_cache && !resolved.config.model.has_experts()) {
    fit.needed_bytes += estimate.weight_copies;
  }
  if (!fit.fits()) {
    fit.savings = cheapest_savings(resolved, estimate, -fit.left_bytes(), /*may_add_ranks=*/true, estimate_memory,
                                   speed_of);
  }
  fit.notes = reference_notes(resolved, *gpu);
  return fit;
}

std::string device_fit_text(const DeviceFit& fit) {
  const std::string memory =
      fmt::format("{} of {}, needing {}, at most {} with contexts and fragments", fit.gpu.name,
                  format_bytes(fit.gpu.memory_bytes), format_bytes(fit.needed_bytes),
                  format_bytes(upper_memory_bound(fit.needed_bytes)));
  std::string text = fit.fits() ? fmt::format("fits {}: {} left\n", memory, format_bytes(fit.left_bytes()))
                                : fmt::format("does not fit {}: {} missing\n", memory, format_bytes(-fit.left_bytes()));
  for (const MemorySaving& saving : fit.savings) {
    text += fmt::format("  {} gives {}, and costs {}\n", saving.words, format_bytes(saving.bytes), saving.cost);
  }
  for (const std::string& note : fit.notes) text += fmt::format("  note: {}\n", note);
  return text;
}

std::optional<std::string> gpu_of_path(const std::string& path) {
  for (const std::filesystem::path& folder : std::filesystem::path(path).parent_path()) {
    if (const auto gpu = known_gpu(folder.string())) return gpu->name;
  }
  return std::nullopt;
}

}  // namespace megalith
