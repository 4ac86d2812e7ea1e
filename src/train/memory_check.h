// Whether what a rank will hold (train/memory_estimate.h) fits what there is for it, and the same answer once memory
// has run out after all: who holds how much, what there is, and which options would take less.
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

// What one rank may take.
struct MemoryThere {
  int64_t bytes = 0;
  std::string text;  // where that comes from: "14.2 GiB of 62.8 GiB of main memory are free, for 2 ranks"
};

// On a CPU what is free of main memory and left by the process's control group, shared by the ranks of this machine; on
// a GPU what is free there. Nothing when the system does not tell.
//   root  of /proc and /sys
std::optional<MemoryThere> memory_there(c10::Device device, int local_world_size,
                                        const std::filesystem::path& root = "/");

// UserError when the rank does not fit, unless allow_oversubscription is on. Allocates nothing.
void check_memory(const Resolved& resolved, const MemoryEstimate& estimate, c10::Device device,
                  const std::optional<MemoryThere>& there, const MemoryMeasure& measure = estimate_memory);

// Whether an error says that memory could not be had.
bool is_out_of_memory(const std::exception& error);

// What to tell then.
std::string out_of_memory_text(const std::exception& error, const Resolved& resolved, const MemoryEstimate& estimate,
                               c10::Device device, const std::optional<MemoryThere>& there,
                               const MemoryMeasure& measure = estimate_memory);

}  // namespace megalith
