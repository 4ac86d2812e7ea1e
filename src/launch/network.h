// The network interfaces of this machine, and over which of them the ranks of a run meet and talk.
//
//   GLOO_SOCKET_IFNAME   tensors on the CPU: names, each of which must be there (eth0,eth1)
//   NCCL_SOCKET_IFNAME   GPUs: beginnings of names (eth,ib), whole names (=eth0), or all but these (^docker,lo)
//   NCCL_IB_HCA          GPUs: InfiniBand and RoCE devices in the same form, with or without a port (=mlx5_0:1,mlx5_1)
//
// What is set is checked before anybody is met: the libraries would complain minutes later, or take a slower way
// without a word. What is not set follows from MASTER_ADDR: ranks on several machines talk over the interface that
// leads there, and the store in which they meet listens only on that address. On one machine they use the loopback
// interface.
//
// Source: NCCL's manual, "Environment Variables", and its src/misc/socket.cc for how the lists are read.
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
  bool is_up = false;                  // switched on, and with a carrier
  std::vector<std::string> addresses;  // numeric, IPv4 or IPv6: "10.0.0.1", "2001:db8::1", "fe80::1%eth0"
};

// What the choice depends on; tests bring their own.
struct HostNetwork {
  std::string host_name;
  std::vector<NetworkInterface> interfaces;
  std::vector<RdmaPort> rdma_ports;
  // Numeric addresses of a host's name, or of an address itself; empty when nobody knows the name.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // The own address from which packets to this one leave; empty when no route leads there.
  std::function<std::string(const std::string& address)> source_towards;
};

HostNetwork this_host();

struct NetworkChoice {
  // What this rank connects to: an own address on the machine that has MASTER_ADDR, elsewhere MASTER_ADDR as it is.
  std::string meeting_address;
  bool owns_meeting_address = false;  // otherwise rank 0, if it serves the store, listens on all addresses
  // Where others reach this machine: its address on the way to MASTER_ADDR, and the interface that has it.
  std::string address, interface;
  std::vector<std::string> gloo_addresses;  // of the interfaces of GLOO_SOCKET_IFNAME; empty when it is not set
  bool has_nccl_interface = false;          // NCCL_SOCKET_IFNAME is set
  std::vector<std::string> notes;           // what works and may surprise
};

// Checks the variables that the back end of this run reads, Gloo's or NCCL's, and finds this machine's way to
// MASTER_ADDR.
//   launch  has a master_address
// UserError, with what this machine has: a name that is not there, is not up or has no address; a MASTER_ADDR that
// nobody knows, to which no route leads, or which each of several machines takes for itself.
NetworkChoice choose_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment,
                             const HostNetwork& host);

// What the back ends are told once the ranks have met and know whether they share one machine.
struct NetworkUse {
  std::vector<std::string> gloo_addresses;  // to listen on
  std::string nccl_interface;               // for NCCL_SOCKET_IFNAME; empty: it stays as it is
  std::string note;                         // what was chosen; empty on one machine
};
NetworkUse network_use(const NetworkChoice& choice, bool uses_gpus, bool has_several_hosts);

// Whether every machine takes this address for itself: 127.0.0.0/8, ::1, 0.0.0.0, ::.
bool is_loopback_address(std::string_view address);

// A socket that listens on one own address, numeric, and on no other; port 0 takes a free one. The caller closes it.
// UserError: the port is in use, or not allowed.
int listen_on(const std::string& address, int port);

// Equal for processes that reach one another over the loopback interface: containers and network namespaces of one
// machine differ.
std::string network_identity();

}  // namespace megalith
