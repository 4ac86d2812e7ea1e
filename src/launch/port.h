// The user of a TCP port, for messages.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace megalith {

// The local listener: "python3 (process 123)", or "a process of user 1000"; empty if none or without /proc. Source:
// proc(5), /proc/net/tcp and /proc/[pid]/fd.
std::string port_owner(int port, const std::filesystem::path& proc = "/proc");

// `host`: name or numeric address.
bool accepts_connections(const std::string& host, int port, std::chrono::milliseconds patience);

// For rank 0 failing to listen; `address` may be empty.
UserError port_in_use(const std::string& address, int port);

}  // namespace megalith
