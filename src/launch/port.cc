#include "launch/port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

struct Listeners {
  std::set<std::string> sockets;  // "socket:[4711]", as in /proc/[pid]/fd
  std::string user;               // id of the first
};

void add_listeners(const fs::path& table, int port, Listeners& listeners) {
  constexpr std::string_view kListens = "0A";
  std::istringstream lines(try_read_facts(table).value_or(""));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
    if (!words || state != kListens || !local.ends_with(fmt::format(":{:04X}", port))) continue;
    listeners.sockets.insert(fmt::format("socket:[{}]", inode));
    if (listeners.user.empty()) listeners.user = user;
  }
}

// False without permission.
bool has_one_of(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator file(process / "fd", error), end; !error && file != end; file.increment(error)) {
    std::error_code unreadable;
    if (sockets.contains(fs::read_symlink(file->path(), unreadable).string())) return true;
  }
  return false;
}

// Established: even a connection reset at once was accepted.
bool stood(int problem) { return problem == 0 || problem == ECONNRESET || problem == ECONNABORTED || problem == EPIPE; }

bool connects(int socket, const addrinfo& address, std::chrono::milliseconds patience) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return stood(errno);
  pollfd wanted{.fd = socket, .events = POLLOUT, .revents = 0};
  if (::poll(&wanted, 1, static_cast<int>(patience.count())) != 1) return false;
  int problem = 0;
  socklen_t length = sizeof(problem);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &length) == 0 && stood(problem);
}

}  // namespace

std::string port_owner(int port, const fs::path& proc) {
  Listeners listeners;
  for (const char* table : {"net/tcp", "net/tcp6"}) add_listeners(proc / table, port, listeners);
  if (listeners.sockets.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator entry(proc, error), end; !error && entry != end; entry.increment(error)) {
    const std::string process = entry->path().filename().string();
    if (!std::all_of(process.begin(), process.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (!has_one_of(entry->path(), listeners.sockets)) continue;
    const std::string command = try_read_facts(entry->path() / "comm").value_or("");
    const std::string_view name = trim(command);
    return fmt::format("{} (process {})", name.empty() ? "a program" : name, process);
  }
  return fmt::format("a process of user {}", listeners.user);
}

bool accepts_connections(const std::string& host, int port, std::chrono::milliseconds patience) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) continue;
    const bool is_there = connects(socket, *address, patience);
    ::close(socket);
    if (is_there) return true;
  }
  return false;
}

UserError port_in_use(const std::string& address, int port) {
  const std::string owner = port_owner(port);
  return UserError(fmt::format("port {} of this machine{}, where the ranks are to meet, is in use{}", port,
                               address.empty() ? "" : " (" + address + ")", owner.empty() ? "" : " by " + owner),
                   "another run may have it: set MASTER_PORT to a free one");
}

}  // namespace megalith
