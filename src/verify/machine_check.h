// This machine's fitness for a run. Pure functions from machine.h's facts.
//
// Sources: ROCm's Megatron-LM, Primus and CVS guides, NCCL's documentation of shared and locked memory.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/finding.h"
#include "device/device.h"
#include "device/machine.h"
#include "device/threads.h"

namespace megalith {

struct MachineUse {
  bool uses_gpu = false;
  int local_world_size = 1, world_size = 1;
};

// As LibTorch sees them.
struct VisibleDevices {
  std::string flavour;       // torch's: "CPU", "CUDA", "ROCm"
  int num_accelerators = 0;  // usable here
  struct Memory {
    int index = 0;
    int64_t free_bytes = 0, total_bytes = 0;
  };
  std::vector<Memory> memory;  // of the queried devices
};

Findings check_processor(const CpuFacts& cpu, const CpuFeatures& features, int usable_cores, const MachineUse& use);
// wait_policy  OMP_WAIT_POLICY: waiting threads spin or sleep; empty: the program chooses
Findings check_threads(const ProcessorShare& share, const std::string& wait_policy);
Findings check_gpus(const GpuFacts& gpus, const VisibleDevices& visible, const MachineUse& use);
Findings check_memory(const MemoryFacts& memory);
// Null: no /dev/shm.
Findings check_shared_memory(const std::optional<SpaceFacts>& shm, const MachineUse& use);
Findings check_numa(const SystemFacts& system, const MachineUse& use);
Findings check_limits(const LimitFacts& limits, const MachineUse& use, bool has_rdma);
Findings check_rdma(std::span<const RdmaPort> ports, const MachineUse& use);

}  // namespace megalith
