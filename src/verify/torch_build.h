// LibTorch as compiled against and as loaded.
#pragma once

#include <string>
#include <string_view>

#include "core/finding.h"

namespace megalith {

struct TorchBuild {
  std::string compiled;  // "2.13.0"
  std::string loaded;    // empty if unknown
  std::string flavour;   // "CPU", "CUDA", "ROCm"
  std::string compiler;  // "GCC 13.3"
  std::string kernels;   // ATen's instruction set: "AVX512"
  bool has_gloo = false, has_nccl = false;
};

// Parses at::show_config(), without `compiled`.
TorchBuild parse_torch_config(std::string_view text);

TorchBuild torch_build();

// Tested.
inline constexpr std::string_view kOldestTorch = "2.11", kNewestTorch = "2.13";

Findings check_torch(const TorchBuild& build);

}  // namespace megalith
