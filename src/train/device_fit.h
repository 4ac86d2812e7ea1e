// A verdict: does a run fit a named GPU, which need not be there (dry_run_device)?
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "device/peak_flops.h"
#include "train/memory_estimate.h"

namespace megalith {

struct DeviceFit {
  KnownGpu gpu;
  int64_t needed_bytes = 0;
  std::vector<MemorySaving> savings;
  std::vector<std::string> notes;  // options that fall back to a reference there

  int64_t left_bytes() const { return memory_left(needed_bytes, gpu.memory_bytes); }  // negative: missing
  bool fits() const { return left_bytes() >= 0; }
};

// The error for a GPU whose memory is not known.
std::optional<UserError> check_dry_run_device(const std::string& device);

// device    passed check_dry_run_device()
// speed_of  prices savings, if given
DeviceFit find_device_fit(const Resolved& resolved, const MemoryEstimate& estimate, const std::string& device,
                          const SpeedOf& speed_of = {});

// Verdict and details, with a final newline.
std::string device_fit_text(const DeviceFit& fit);

// The GPU named by a folder of the path, if any.
std::optional<std::string> gpu_of_path(const std::string& path);

}  // namespace megalith
