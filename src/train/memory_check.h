// Compares a rank's estimated memory (train/memory_estimate.h) with what is available, and explains out-of-memory
// errors: memory by owner, options that save it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "train/config.h"
#include "train/memory_estimate.h"

namespace megalith {

struct MemoryThere {
  int64_t bytes = 0;
  std::string text;  // its source: "14.2 GiB of 62.8 GiB of main memory are free, for 2 ranks"
};

// CPU: free main memory within the control group's limit, shared by this machine's ranks; GPU: its free memory. Nothing
// if unknown.
//   root  of /proc and /sys
std::optional<MemoryThere> memory_there(c10::Device device, int local_world_size,
                                        const std::filesystem::path& root = "/");

// UserError if the rank does not fit, unless allow_oversubscription is on. Allocates nothing.
void check_memory(const Resolved& resolved, const MemoryEstimate& estimate, c10::Device device,
                  const std::optional<MemoryThere>& there, const MemoryMeasure& measure = estimate_memory,
                  const SpeedOf& speed_of = {});

bool is_out_of_memory(const std::exception& error);

std::string out_of_memory_text(const std::exception& error, const Resolved& resolved, const MemoryEstimate& estimate,
                               c10::Device device, const std::optional<MemoryThere>& there,
                               const MemoryMeasure& measure = estimate_memory, const SpeedOf& speed_of = {});

}  // namespace megalith
