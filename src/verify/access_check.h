// Whether this process may use the machine's devices, and whether the machine is set as the guides of ROCm ask. Judges
// what machine_access.h has read; every check is a pure function from facts to findings.
//
// Source of the demands: the `docker run` lines of the guides of ROCm's Megatron-LM and Primus; CVS, which switches ufw
// off; AMD's guides for steady clocks.
#pragma once

#include <string>
#include <vector>

#include "core/finding.h"
#include "device/machine_access.h"
#include "verify/machine_check.h"

namespace megalith {

// Topic "devices": /dev/kfd and /dev/dri where there are AMD's GPUs or a torch for them, /dev/infiniband where there
// are RDMA ports, each with the group that a person has to join.
//   is_rocm   torch is built for AMD's GPUs
//   has_rdma  the kernel lists RDMA ports
Findings check_device_access(const AccessFacts& access, const MachineUse& use, bool is_rocm, bool has_rdma);

// Topic "devices". levels: see read_gpu_clock_levels(); nothing is found where there are none.
Findings check_gpu_clocks(const std::vector<std::string>& levels);

// Topic "limits".
Findings check_tracing(const AccessFacts& access);

// Topic "ports". firewalls: see read_firewalls().
Findings check_firewalls(const std::vector<std::string>& firewalls, const MachineUse& use);

}  // namespace megalith
