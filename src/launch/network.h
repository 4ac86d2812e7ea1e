// This machine's network interfaces, and those that ranks meet and communicate over.
//
//   GLOO_SOCKET_IFNAME   CPU tensors: names, each of which must exist (eth0,eth1)
//   NCCL_SOCKET_IFNAME   GPUs: prefixes of names (eth,ib), whole names (=eth0), or exclusions (^docker,lo)
//   NCCL_IB_HCA          GPUs: InfiniBand and RoCE devices in the same form, with optional port (=mlx5_0:1,mlx5_1)
//
// Given values are checked before ranks meet: libraries complain minutes later, or are silently slow. By default ranks
// on several machines use the interface towards MASTER_ADDR, and the store listens only on that address; on one
// machine, the loopback interface.
//
// Source: NCCL's manual, "Environment Variables", and its src/misc/socket.cc for the lists' syntax.
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
  bool is_up = false;                  // enabled, with a carrier
  std::vector<std::string> addresses;  // numeric: "10.0.0.1", "2001:db8::1", "fe80::1%eth0"
};

// The machine's network; tests provide their own.
struct HostNetwork {
  std::string host_name;
  std::vector<NetworkInterface> interfaces;
  std::vector<RdmaPort> rdma_ports;
  // A host's numeric addresses, or an address itself; empty for unknown names.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // The local source address of packets to `address`; empty without a route.
  std::function<std::string(const std::string& address)> source_towards;
};

HostNetwork this_host();

struct NetworkChoice {
  // The address to connect to: a local one on MASTER_ADDR's machine, elsewhere MASTER_ADDR itself.
  std::string meeting_address;
  bool owns_meeting_address = false;  // false: rank 0, if it serves the store, listens on all addresses
  // This machine's address for others, on the way to MASTER_ADDR, and its interface.
  std::string address, interface;
  std::vector<std::string> gloo_addresses;  // of GLOO_SOCKET_IFNAME's interfaces; empty if unset
  bool has_nccl_interface = false;          // NCCL_SOCKET_IFNAME is set
  std::vector<std::string> notes;           // surprising choices
};

// Checks the back end's variables and finds the way to MASTER_ADDR.
//   launch  has a master_address
// UserError, listing this machine's interfaces: one that is missing, down or without an address; a MASTER_ADDR that is
// unknown, unreachable, or local to each of several machines.
NetworkChoice choose_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment,
                             const HostNetwork& host);

// Settings for the back ends once the ranks have met and know whether they share a machine.
struct NetworkUse {
  std::vector<std::string> gloo_addresses;  // to listen on
  std::string nccl_interface;               // for NCCL_SOCKET_IFNAME; empty: unchanged
  std::string note;                         // the choice; empty on one machine
};
NetworkUse network_use(const NetworkChoice& choice, bool uses_gpus, bool has_several_hosts);

// True for addresses that every machine considers its own: 127.0.0.0/8, ::1, 0.0.0.0, ::.
bool is_loopback_address(std::string_view address);

// A socket listening only on this local numeric address; port 0 means any free one. The caller closes it. UserError:
// the port is in use or forbidden.
int listen_on(const std::string& address, int port);

// Equal for processes that share a loopback interface; containers and network namespaces differ.
std::string network_identity();

}  // namespace megalith
