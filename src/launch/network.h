// This machine's network interfaces, and those ranks use.
//
//   GLOO_SOCKET_IFNAME   CPU tensors: names that must exist (eth0,eth1)
//   NCCL_SOCKET_IFNAME   GPUs: prefixes (eth,ib), whole names (=eth0), or exclusions (^docker,lo)
//   NCCL_IB_HCA          GPUs: InfiniBand and RoCE devices likewise, with optional port (=mlx5_0:1,mlx5_1)
//
// Checked before ranks meet: libraries complain minutes later, or are silently slow. By default ranks on several
// machines use the interface towards MASTER_ADDR, and the store listens only there; on one machine, loopback.
//
// Source: NCCL's manual, "Environment Variables"; its src/misc/socket.cc for the syntax.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/yaml_document.h"
#include "device/machine.h"
#include "launch/launch.h"

namespace megalith {

struct NetworkInterface {
  std::string name;
  bool is_up = false;                  // with a carrier
  std::vector<std::string> addresses;  // numeric: "10.0.0.1", "2001:db8::1", "fe80::1%eth0"
};

// Tests provide their own.
struct HostNetwork {
  std::string host_name;
  std::vector<NetworkInterface> interfaces;
  std::vector<RdmaPort> rdma_ports;
  // Numeric; empty if unknown.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // Local source address of packets to `address`; empty without a route.
  std::function<std::string(const std::string& address)> source_towards;
};

HostNetwork this_host();

struct NetworkChoice {
  // A local address on MASTER_ADDR's machine, elsewhere MASTER_ADDR.
  std::string meeting_address;
  bool owns_meeting_address = false;  // false: a serving rank 0 listens on all addresses
  // For others, on the way to MASTER_ADDR.
  std::string address, interface;
  std::vector<std::string> gloo_addresses;  // of GLOO_SOCKET_IFNAME; empty if unset
  bool has_nccl_interface = false;          // NCCL_SOCKET_IFNAME is set
  std::vector<std::string> notes;           // surprises
};

// `launch` has a master_address. UserError, listing the interfaces: one missing, down or without an address; a
// MASTER_ADDR unknown, unreachable, or local to each of several machines.
NetworkChoice choose_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment,
                             const HostNetwork& host);

// For back ends, once ranks have met.
struct NetworkUse {
  std::vector<std::string> gloo_addresses;  // to listen on
  std::string nccl_interface;               // NCCL_SOCKET_IFNAME; empty: unchanged
  std::string note;                         // empty on one machine
};
NetworkUse network_use(const NetworkChoice& choice, bool uses_gpus, bool has_several_hosts);

// Every machine's own: 127.0.0.0/8, ::1, 0.0.0.0, ::.
bool is_loopback_address(std::string_view address);

// Returns a socket, for the caller to close, on this numeric address only; port 0: any free one. UserError: in use or
// forbidden.
int listen_on(const std::string& address, int port);

// Equal for processes sharing a loopback interface: not across containers and network namespaces.
std::string network_identity();

}  // namespace megalith
