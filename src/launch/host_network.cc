// network.h's queries to the system.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "launch/network.h"
#include "launch/port.h"

namespace megalith {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) list = nullptr;
  return {list, &::freeaddrinfo};
}

std::string numeric(const sockaddr* address) {
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text.data();
}

bool is_internet(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

std::vector<NetworkInterface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const NetworkInterface& one) { return one.name == entry->ifa_name; });
    if (found == interfaces.end()) found = interfaces.insert(found, {.name = entry->ifa_name});
    found->is_up |= (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    if (is_internet(entry->ifa_addr)) found->addresses.push_back(numeric(entry->ifa_addr));
  }
  return interfaces;
}

std::vector<std::string> resolve(const std::string& host) {
  std::vector<std::string> addresses;
  const AddressList list = look_up(host, 0, 0);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (!is_internet(entry->ai_addr)) continue;
    const std::string address = numeric(entry->ai_addr);
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  return addresses;
}

// Connecting a datagram socket picks a route and sends nothing.
std::string source_towards(const std::string& address) {
  constexpr int kDiscardPort = 9;
  const AddressList list = look_up(address, kDiscardPort, AI_NUMERICHOST);
  if (list == nullptr) return "";
  const int socket = ::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return "";
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  auto* own_address = reinterpret_cast<sockaddr*>(&own);
  const bool is_routed =
      ::connect(socket, list->ai_addr, list->ai_addrlen) == 0 && ::getsockname(socket, own_address, &length) == 0;
  ::close(socket);
  return is_routed ? numeric(own_address) : "";
}

}  // namespace

HostNetwork this_host() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  return {.host_name = name.data(),
          .interfaces = list_interfaces(),
          .rdma_ports = read_rdma_ports("/"),
          .resolve = resolve,
          .source_towards = source_towards};
}

int listen_on(const std::string& address, int port) {
  const AddressList list = look_up(address, port, AI_NUMERICHOST | AI_PASSIVE);
  MEGALITH_CHECK(list != nullptr, "'{}' is no address, or {} no port", address, port);
  const int socket = ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  // Closing connections do not occupy a port.
  if (socket >= 0 && ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      ::bind(socket, list->ai_addr, list->ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) {
    return socket;
  }
  const int reason = errno;
  if (socket >= 0) ::close(socket);
  if (reason == EADDRINUSE) throw port_in_use(address, port);
  throw UserError(fmt::format("rank 0 cannot listen on {} port {} (MASTER_ADDR, MASTER_PORT): {}", address, port,
                              std::strerror(reason)),
                  "set MASTER_PORT to a free one above 1023, and MASTER_ADDR to an address of rank 0's machine");
}

std::string network_identity() {
  const std::string text = try_read_facts("/proc/sys/kernel/random/boot_id").value_or("");
  const std::string_view boot = trim(text);
  std::array<char, 64> space{};
  if (::readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) space[0] = '\0';
  return fmt::format("{} {}", boot, space.data());
}

}  // namespace megalith
