#include "verify/torch_build.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cstdlib>
#include <utility>

namespace megalith {
namespace {

// Up to a comma, blank or newline; "" if missing.
std::string value_behind(std::string_view text, std::string_view key) {
  const size_t start = text.find(key);
  if (start == std::string_view::npos) return "";
  const std::string_view rest = text.substr(start + key.size());
  return std::string(rest.substr(0, rest.find_first_of(",\n ")));
}

// 2.13.0a0+git1 is (2, 13); (0, 0) if malformed.
std::pair<int, int> major_minor(std::string_view version) {
  const size_t dot = version.find('.');
  if (dot == std::string_view::npos) return {0, 0};
  return {std::atoi(std::string(version.substr(0, dot)).c_str()),
          std::atoi(std::string(version.substr(dot + 1)).c_str())};
}

}  // namespace

TorchBuild parse_torch_config(std::string_view text) {
  TorchBuild build;
  build.loaded = value_behind(text, "TORCH_VERSION=");
  const auto is_on = [&](std::string_view key) {
    const std::string value = value_behind(text, key);
    return value == "1" || value == "ON";
  };
  build.flavour = is_on("USE_ROCM=") ? "ROCm" : is_on("USE_CUDA=") ? "CUDA" : "CPU";
  build.has_gloo = is_on("USE_GLOO=");
  // RCCL counts; older AMD builds list only that.
  build.has_nccl = is_on("USE_NCCL=") || is_on("USE_RCCL=");
  build.kernels = value_behind(text, "CPU capability usage: ");
  if (const std::string gcc = value_behind(text, "- GCC "); !gcc.empty()) build.compiler = "GCC " + gcc;
  if (const std::string clang = value_behind(text, "- clang "); !clang.empty()) build.compiler = "clang " + clang;
  return build;
}

TorchBuild torch_build() {
  TorchBuild build = parse_torch_config(at::show_config());
  build.compiled = TORCH_VERSION;
  return build;
}

Findings check_torch(const TorchBuild& build) {
  const auto loaded = major_minor(build.loaded), compiled = major_minor(build.compiled);
  const std::string text = fmt::format("{} ({}), compiled against {}", build.loaded.empty() ? "unknown" : build.loaded,
                                       build.flavour, build.compiled);
  Finding finding{"versions", "torch", FindingLevel::kOk, text, ""};
  if (build.loaded.empty()) {
    finding.level = FindingLevel::kNote;
  } else if (loaded != compiled) {
    // C++ libraries are not ABI-compatible across versions.
    finding.level = FindingLevel::kError;
    finding.remedy = "build again with the torch that is there (make), or point LD_LIBRARY_PATH elsewhere";
  } else if (loaded < major_minor(kOldestTorch) || loaded > major_minor(kNewestTorch)) {
    finding.level = FindingLevel::kWarning;
    finding.found += fmt::format("; tested with {} to {}", kOldestTorch, kNewestTorch);
    finding.remedy = "run 'make test' against this one before a long run";
  }
  Findings findings = {std::move(finding)};
  if (!build.compiler.empty())
    findings.push_back({"versions", "torch's compiler", FindingLevel::kOk, build.compiler, ""});
  if (!build.kernels.empty())
    findings.push_back({"versions", "torch's CPU kernels", FindingLevel::kOk, build.kernels, ""});
  return findings;
}

}  // namespace megalith
