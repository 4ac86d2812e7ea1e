// The network of a run over several machines: what the user left open is chosen, and said with the reason.
#pragma once

#include "compat/launch_plan.h"
#include "launch/network.h"

namespace megalith {

// NCCL_IB_HCA, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME where neither is among the plan's exports. UserError, with
// what this machine has: a name that is set and is not there, or a MASTER_ADDR to which no way leads.
std::vector<PlannedExport> choose_network_exports(const LaunchPlan& plan, const EnvironmentMap& environment,
                                                  const HostNetwork& host);

}  // namespace megalith
