// See launch_network.h.
#include "compat/launch_network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/strings.h"

namespace megalith {
namespace {

bool has_export(const LaunchPlan& plan, std::string_view name) {
  return std::any_of(plan.exports.begin(), plan.exports.end(),
                     [&](const PlannedExport& one) { return one.name == name; });
}

// Ports that carry storage or the host's own traffic.
bool is_for_others(const std::string& device) {
  const std::string name = lower_case(device);
  return name.find("bond") != std::string::npos || name.find("eth") != std::string::npos;
}

}  // namespace

std::vector<PlannedExport> choose_network_exports(const LaunchPlan& plan, const EnvironmentMap& environment,
                                                  const HostNetwork& host) {
  std::vector<PlannedExport> chosen;
  if (plan.num_nodes == 1) return chosen;
  EnvironmentMap variables = environment;
  for (const PlannedExport& one : plan.exports) variables[one.name] = one.value;
  const Launch launch{.launcher = Launcher::kTorchrun,
                      .rank = plan.node_rank * plan.ranks_per_node,
                      .world_size = plan.world_size(),
                      .local_world_size = plan.ranks_per_node,
                      .master_address = plan.master_address,
                      .master_port = plan.master_port};
  const NetworkChoice choice = choose_network(launch, plan.num_gpus > 0, variables, host);
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (has_export(plan, name) || choice.interface.empty()) continue;
    chosen.push_back(
        {name, choice.interface, fmt::format("the interface that leads to MASTER_ADDR {}", plan.master_address)});
  }
  std::vector<std::string> ports;
  for (const RdmaPort& port : host.rdma_ports) {
    if (port.is_active() && !is_for_others(port.device)) ports.push_back(fmt::format("{}:{}", port.device, port.port));
  }
  if (!has_export(plan, "NCCL_IB_HCA") && !ports.empty()) {
    chosen.push_back({"NCCL_IB_HCA", fmt::format("{}", fmt::join(ports, ",")), "the active RDMA ports"});
  }
  return chosen;
}

}  // namespace megalith
