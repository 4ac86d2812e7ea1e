#include "launch/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

std::string variable(const EnvironmentMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// Keeps blanks, as the libraries do.
std::vector<std::string> comma_list(std::string_view text) {
  std::vector<std::string> entries;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    entries.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return entries;
}

bool is_ipv4(const std::string& address) { return address.find(':') == std::string::npos; }

// With both kinds, all machines must choose the same.
std::vector<std::string> ipv4_first(std::vector<std::string> addresses) {
  std::stable_partition(addresses.begin(), addresses.end(), is_ipv4);
  return addresses;
}

std::string main_address(const NetworkInterface& interface) {
  std::vector<std::string> addresses = ipv4_first(interface.addresses);
  // Link-local addresses need the interface's name, which varies by machine.
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !address.starts_with("fe80:"); });
  return addresses.empty() ? "" : addresses.front();
}

bool is_usable(const NetworkInterface& interface) { return interface.is_up && !interface.addresses.empty(); }

bool is_loopback(const NetworkInterface& interface) {
  return std::all_of(interface.addresses.begin(), interface.addresses.end(), is_loopback_address);
}

std::string describe(const NetworkInterface& interface) {
  if (!interface.is_up) return interface.name + " (down)";
  if (interface.addresses.empty()) return interface.name + " (no address)";
  return fmt::format("{} ({})", interface.name, join(interface.addresses, ", "));
}

std::string describe(const std::vector<NetworkInterface>& interfaces) {
  std::vector<std::string> parts;
  for (const NetworkInterface& interface : interfaces) parts.push_back(describe(interface));
  return parts.empty() ? "no network interface" : join(parts, ", ");
}

std::string describe(const std::vector<RdmaPort>& ports) {
  std::vector<std::string> parts;
  for (const RdmaPort& port : ports) {
    parts.push_back(fmt::format("{}:{}{}", port.device, port.port,
                                port.is_active() ? "" : fmt::format(" ({})", lower_case(port.state))));
  }
  return parts.empty() ? "no InfiniBand or RoCE device" : join(parts, ", ");
}

// "^=name:port,name".
struct NcclList {
  struct Entry {
    std::string name;
    std::optional<int> port;
  };
  bool excludes = false, is_exact = false;
  std::vector<Entry> entries;

  explicit NcclList(std::string_view text) {
    if (text.starts_with('^')) excludes = true, text.remove_prefix(1);
    if (text.starts_with('=')) is_exact = true, text.remove_prefix(1);
    for (const std::string& entry : comma_list(text)) {
      const size_t colon = entry.find(':');
      if (colon == 0 || entry.empty()) continue;
      entries.push_back({entry.substr(0, colon), {}});
      if (colon != std::string::npos) entries.back().port = std::atoi(entry.c_str() + colon + 1);
    }
  }

  bool matches(const Entry& entry, const std::string& name, int port) const {
    if (entry.port && port >= 0 && *entry.port != port) return false;
    return is_exact ? name == entry.name : name.starts_with(entry.name);
  }

  bool takes(const std::string& name, int port = -1) const {
    const bool is_listed = entries.empty() || std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
                             return matches(entry, name, port);
                           });
    return is_listed != excludes;
  }
};

class Check {
 public:
  Check(const Launch& launch, const EnvironmentMap& environment, const HostNetwork& host, NetworkChoice& choice)
      : launch_(launch), environment_(environment), host_(host), choice_(choice) {}

  void gloo_interfaces() {
    const std::string name = "GLOO_SOCKET_IFNAME", text = variable(environment_, name);
    if (text.empty()) return;
    for (const std::string& wanted : comma_list(text)) {
      const auto found = std::find_if(host_.interfaces.begin(), host_.interfaces.end(),
                                      [&](const NetworkInterface& one) { return one.name == wanted; });
      std::string problem;
      if (found == host_.interfaces.end()) {
        problem = "is not an interface of this machine";
      } else if (!found->is_up) {
        problem = "is down";
      } else if (found->addresses.empty()) {
        problem = "has no address";
      } else if (is_loopback(*found) && !launch_.is_one_machine()) {
        problem = "cannot be reached from the other machines of this run";
      } else {
        choice_.gloo_addresses.push_back(main_address(*found));
        continue;
      }
      refuse(name, text, fmt::format("'{}' {}", wanted, problem), describe(host_.interfaces),
             "unset it: then the interface that leads to MASTER_ADDR is taken");
    }
  }

  void nccl_interfaces() {
    const std::string name = "NCCL_SOCKET_IFNAME", text = variable(environment_, name);
    choice_.has_nccl_interface = !text.empty();
    if (text.empty()) return;
    const NcclList list(text);
    std::vector<NetworkInterface> usable = host_.interfaces;
    std::erase_if(usable, [&](const NetworkInterface& one) {
      return !is_usable(one) || (is_loopback(one) && !launch_.is_one_machine());
    });
    const bool has_any =
        std::any_of(usable.begin(), usable.end(), [&](const NetworkInterface& one) { return list.takes(one.name); });
    if (!has_any) {
      refuse(name, text,
             fmt::format("no interface {} is left that is up and has an address",
                         launch_.is_one_machine() ? "of this machine" : "that other machines reach"),
             describe(host_.interfaces), "unset it: then the interface that leads to MASTER_ADDR is taken");
      return;
    }
    if (!list.excludes)
      note_absent(name, list, [&](const NcclList::Entry& entry) {
        return std::any_of(usable.begin(), usable.end(),
                           [&](const NetworkInterface& one) { return list.matches(entry, one.name, -1); });
      });
  }

  // GPUs of one machine do not use these.
  void rdma_devices() {
    const std::string name = "NCCL_IB_HCA", text = variable(environment_, name);
    const std::string disabled = variable(environment_, "NCCL_IB_DISABLE");
    if (text.empty() || launch_.is_one_machine() || (!disabled.empty() && disabled != "0")) return;
    const NcclList list(text);
    const auto is_taken = [&](const RdmaPort& port) { return list.takes(port.device, port.port); };
    const auto& ports = host_.rdma_ports;
    const std::string remedy = "unset it: then NCCL takes the active ones (NCCL_IB_DISABLE=1 uses sockets instead)";
    if (list.excludes) {
      if (!ports.empty() && std::none_of(ports.begin(), ports.end(), is_taken)) {
        choice_.notes.push_back(
            fmt::format("{} is '{}', which leaves none of {}: NCCL talks over sockets", name, text, describe(ports)));
      }
      return;
    }
    if (std::none_of(ports.begin(), ports.end(), is_taken)) {
      refuse(name, text, "no device of this machine has such a name and port", describe(ports), remedy);
    } else if (std::none_of(ports.begin(), ports.end(),
                            [&](const RdmaPort& port) { return is_taken(port) && port.is_active(); })) {
      refuse(name, text, "none of these ports is active", describe(ports), remedy);
    } else {
      note_absent(name, list, [&](const NcclList::Entry& entry) {
        return std::any_of(ports.begin(), ports.end(), [&](const RdmaPort& port) {
          return port.is_active() && list.matches(entry, port.device, port.port);
        });
      });
    }
  }

  void finish() {
    if (errors_.size() == 1) throw errors_.front();
    if (!errors_.empty()) throw UserErrors(errors_);
  }

 private:
  void refuse(const std::string& name, const std::string& text, const std::string& problem, const std::string& has,
              const std::string& otherwise) {
    errors_.emplace_back(
        fmt::format("{} is '{}': {}; this machine ({}) has {}", name, text, problem, host_.host_name, has),
        fmt::format("set {} to what is there, or {}", name, otherwise));
  }

  template <typename IsThere>
  void note_absent(const std::string& name, const NcclList& list, const IsThere& is_there) {
    std::vector<std::string> absent;
    for (const NcclList::Entry& entry : list.entries) {
      if (!is_there(entry)) absent.push_back(entry.port ? fmt::format("{}:{}", entry.name, *entry.port) : entry.name);
    }
    if (absent.empty()) return;
    choice_.notes.push_back(fmt::format("{} names {}, of which rank {}'s machine has nothing in use", name,
                                        join(absent, ", "), launch_.rank));
  }

  const Launch& launch_;
  const EnvironmentMap& environment_;
  const HostNetwork& host_;
  NetworkChoice& choice_;
  std::vector<UserError> errors_;
};

const NetworkInterface* interface_with(const HostNetwork& host, const std::string& address) {
  for (const NetworkInterface& interface : host.interfaces) {
    const auto& addresses = interface.addresses;
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) return &interface;
  }
  return nullptr;
}

// Null if several can be reached by others.
const NetworkInterface* only_way_out(const HostNetwork& host) {
  const NetworkInterface* found = nullptr;
  for (const NetworkInterface& interface : host.interfaces) {
    if (!is_usable(interface) || is_loopback(interface)) continue;
    if (found != nullptr) return nullptr;
    found = &interface;
  }
  return found;
}

// Debian maps a machine's own name to 127.0.1.1.
bool is_own_name(const std::string& name, const HostNetwork& host) {
  const std::string own = host.host_name.substr(0, host.host_name.find('.'));
  return !own.empty() && !own.starts_with("localhost") && name.substr(0, name.find('.')) == own;
}

UserError loopback_error(const Launch& launch, const std::vector<std::string>& addresses, const HostNetwork& host) {
  const std::string& name = launch.master_address;
  const bool is_numeric = addresses.front() == name;
  return UserError(
      fmt::format("MASTER_ADDR is {}{}, which each machine takes for itself, and the {} ranks are on several machines "
                  "({} on this one)",
                  name, is_numeric ? "" : fmt::format(" ({})", join(addresses, ", ")), launch.world_size,
                  launch.local_world_size),
      fmt::format("set MASTER_ADDR on every machine to that address of rank 0's machine that the others reach; this "
                  "machine ({}) has {}",
                  host.host_name, describe(host.interfaces)));
}

// needs_interface  none is given, and Gloo needs an address
void find_way(const Launch& launch, const HostNetwork& host, bool needs_interface, NetworkChoice& choice) {
  const std::string& name = launch.master_address;
  std::vector<std::string> addresses = ipv4_first(host.resolve(name));
  if (addresses.empty()) {
    throw UserError(fmt::format("MASTER_ADDR is '{}', and {} knows no such host", name, host.host_name),
                    "set it to the address of rank 0's machine (torchrun: --local-addr there), or make its name known "
                    "(/etc/hosts, DNS)");
  }
  const auto own = [&](const std::string& address) {
    choice.owns_meeting_address = true;
    choice.address = address;
    if (const NetworkInterface* interface = interface_with(host, address)) choice.interface = interface->name;
    // The launcher's store listens on all addresses; its own name for it is safest.
    choice.meeting_address = launch.has_agent_store ? name : address;
  };
  if (launch.is_one_machine()) {
    // Connecting to "all addresses" uses loopback.
    if (addresses.front() == "0.0.0.0") return own("127.0.0.1");
    if (addresses.front() == "::") return own("::1");
    const auto first = std::find_if(addresses.begin(), addresses.end(), [&](const std::string& address) {
      return address.starts_with("127.") || interface_with(host, address) != nullptr;
    });
    if (first != addresses.end()) return own(*first);
  } else {
    const std::vector<std::string> all = addresses;
    std::erase_if(addresses, is_loopback_address);
    if (addresses.empty()) {
      const NetworkInterface* way_out = is_own_name(name, host) ? only_way_out(host) : nullptr;
      if (way_out == nullptr) throw loopback_error(launch, all, host);
      return own(main_address(*way_out));
    }
    const auto first = std::find_if(addresses.begin(), addresses.end(), [&](const std::string& address) {
      return interface_with(host, address) != nullptr;
    });
    if (first != addresses.end()) return own(*first);
  }
  choice.meeting_address = name;
  for (const std::string& address : addresses) {
    choice.address = host.source_towards(address);
    if (choice.address.empty()) continue;
    if (const NetworkInterface* interface = interface_with(host, choice.address)) {
      choice.interface = interface->name;
    } else if (needs_interface && !launch.is_one_machine()) {
      throw UserError(fmt::format("packets to MASTER_ADDR {} leave this machine ({}) from {}, which no interface has; "
                                  "it has {}",
                                  name, host.host_name, choice.address, describe(host.interfaces)),
                      "set GLOO_SOCKET_IFNAME to the interface on which the other machines reach this one");
    }
    if (launch.rank == 0 && !launch.has_agent_store) {
      choice.notes.push_back(
          fmt::format("MASTER_ADDR {} is not an address of rank 0's machine ({}): the ranks meet at "
                      "port {} of all its addresses",
                      name, host.host_name, launch.master_port));
    }
    return;
  }
  throw UserError(fmt::format("no route leads from this machine ({}) to MASTER_ADDR {} ({}); it has {}", host.host_name,
                              name, join(addresses, ", "), describe(host.interfaces)),
                  "set MASTER_ADDR to an address of rank 0's machine that all machines reach");
}

}  // namespace

bool is_loopback_address(std::string_view address) {
  const std::string text(address.substr(0, address.find('%')));
  in_addr ipv4{};
  in6_addr ipv6{};
  if (::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) {
    return ipv4.s_addr == INADDR_ANY || ntohl(ipv4.s_addr) >> 24 == 127;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&ipv6) || IN6_IS_ADDR_UNSPECIFIED(&ipv6) ||
         (IN6_IS_ADDR_V4MAPPED(&ipv6) && ipv6.s6_addr[12] == 127);
}

NetworkChoice choose_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment,
                             const HostNetwork& host) {
  NetworkChoice choice;
  Check check(launch, environment, host, choice);
  if (uses_gpus) {
    check.nccl_interfaces();
    check.rdma_devices();
  } else {
    check.gloo_interfaces();
  }
  check.finish();
  find_way(launch, host, !uses_gpus && choice.gloo_addresses.empty(), choice);
  return choice;
}

NetworkUse network_use(const NetworkChoice& choice, bool uses_gpus, bool has_several_hosts) {
  NetworkUse use;
  const bool has_way = has_several_hosts && !is_loopback_address(choice.address);
  const std::string name = uses_gpus ? "NCCL_SOCKET_IFNAME" : "GLOO_SOCKET_IFNAME";
  if (uses_gpus) {
    // Some fabrics put addresses on loopback, whose name would not find them.
    if (has_way && !choice.has_nccl_interface && choice.interface != "lo") use.nccl_interface = choice.interface;
  } else if (!choice.gloo_addresses.empty()) {
    use.gloo_addresses = choice.gloo_addresses;
  } else {
    // Containers often cannot resolve their own name.
    use.gloo_addresses = {has_way ? choice.address : "127.0.0.1"};
  }
  if (has_way && (uses_gpus ? !use.nccl_interface.empty() : choice.gloo_addresses.empty())) {
    use.note = fmt::format("rank 0 talks over {} ({}), which leads to MASTER_ADDR; {} names another interface",
                           choice.interface, choice.address, name);
  }
  return use;
}

}  // namespace megalith
