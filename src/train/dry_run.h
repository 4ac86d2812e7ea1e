// A dry run's report: configuration, layout, size, a rank's memory by owner. Allocates nothing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/device_fit.h"
#include "train/memory_estimate.h"
#include "train/report.h"

namespace megalith {

struct DryRun {
  ModelNumbers numbers;
  MemoryEstimate memory;  // of the rank with the most
  std::vector<int64_t> stage_bytes;  // on the device, by pipeline rank
  std::optional<DeviceFit> fit;
  std::string suggestion;  // suggested_layout()
};

// For the configuration's world, on the meta device.
// config_root  has the rates that price savings on a dry_run_device; may be empty
DryRun make_dry_run(const Resolved& resolved, const std::filesystem::path& config_root = {});

// As printed, with a final newline.
std::string dry_run_text(const Resolved& resolved, const DryRun& run);

}  // namespace megalith
