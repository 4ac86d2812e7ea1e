// Access to devices and machine settings. Pure functions from machine_access.h's facts.
//
// Sources: `docker run` lines of ROCm's Megatron-LM and Primus guides; CVS, which disables ufw; AMD's guides on clocks.
#pragma once

#include <string>
#include <vector>

#include "core/finding.h"
#include "device/machine_access.h"
#include "verify/machine_check.h"

namespace megalith {

// Topic "devices": /dev/kfd and /dev/dri with AMD GPUs or a torch for them, /dev/infiniband with RDMA ports, with the
// group to join.
//   is_rocm   torch is built for AMD
//   has_rdma  the kernel lists RDMA ports
Findings check_device_access(const AccessFacts& access, const MachineUse& use, bool is_rocm, bool has_rdma);

// Topic "devices". levels: read_gpu_clock_levels(); may be empty.
Findings check_gpu_clocks(const std::vector<std::string>& levels);

// Topic "limits".
Findings check_tracing(const AccessFacts& access);

// Topic "ports". firewalls: read_firewalls().
Findings check_firewalls(const std::vector<std::string>& firewalls, const MachineUse& use);

}  // namespace megalith
