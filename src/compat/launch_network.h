// The network of a run over several machines: chooses what the user left open, giving the reason.
#pragma once

#include "compat/launch_plan.h"
#include "launch/network.h"

namespace megalith {

// NCCL_IB_HCA, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME if not among the plan's exports. UserError, listing what this
// machine has, for a name that is set but missing, or an unreachable MASTER_ADDR.
std::vector<PlannedExport> choose_network_exports(const LaunchPlan& plan, const EnvironmentMap& environment,
                                                  const HostNetwork& host);

}  // namespace megalith
