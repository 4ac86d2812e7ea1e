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

// The share of a GPU's memory that an estimate may take. The rest is for what it leaves out: the driver's context,
// communication buffers, workspaces of libraries, fragments.
inline constexpr double kUsableMemory = 0.95;

struct DeviceFit {
  KnownGpu gpu;
  int64_t needed_bytes = 0;
  std::vector<MemorySaving> savings;  // if it does not fit
  std::vector<std::string> notes;     // options that fall to a reference there

  int64_t left_bytes() const;  // negative: missing
  bool fits() const { return left_bytes() >= 0; }
};

// The error for a GPU whose memory is not known.
std::optional<UserError> check_dry_run_device(const std::string& device);

// device  passed check_dry_run_device()
DeviceFit find_device_fit(const Resolved& resolved, const MemoryEstimate& estimate, const std::string& device);

// A verdict and its lines, with a final newline.
std::string device_fit_text(const DeviceFit& fit);

// The GPU for which a file is meant: a folder of its path has its name; nothing: none has.
std::optional<std::string> gpu_of_path(const std::string& path);

}  // namespace megalith
