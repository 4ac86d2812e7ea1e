// The LibTorch that this program was compiled against, and the one that the system loaded: they may differ.
#pragma once

#include <string>
#include <string_view>

#include "core/finding.h"

namespace megalith {

struct TorchBuild {
  std::string compiled;  // version of the headers: "2.13.0"
  std::string loaded;    // of the library; empty when it does not tell
  std::string flavour;   // of the library: "CPU", "CUDA", "ROCm"
  std::string compiler;  // of the library: "GCC 13.3"
  std::string kernels;   // which of the CPU's instruction sets ATen uses: "AVX512"
  bool has_gloo = false, has_nccl = false;
};

// Reads the text of at::show_config(); `compiled` is left empty.
TorchBuild parse_torch_config(std::string_view text);

// The build that this process has loaded.
TorchBuild torch_build();

// Oldest and newest version that Megalith is tested with: "2.11", "2.13".
inline constexpr std::string_view kOldestTorch = "2.11", kNewestTorch = "2.13";

Findings check_torch(const TorchBuild& build);

}  // namespace megalith
