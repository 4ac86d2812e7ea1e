// Who has a TCP port: for messages about the place where the ranks meet.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace megalith {

// Who listens on a port of this machine, as far as this user may see it: "python3 (process 123)", or "a process of
// user 1000"; empty when nobody does, or there is no /proc.
//   proc  where the system's files on processes lie
// Source: proc(5), /proc/net/tcp and /proc/[pid]/fd.
std::string port_owner(int port, const std::filesystem::path& proc = "/proc");

// Whether somebody accepts a connection there within that time. `host` is a name or a numeric address.
bool accepts_connections(const std::string& host, int port, std::chrono::milliseconds patience);

// For rank 0, which wanted to listen there; `address` may be empty.
UserError port_in_use(const std::string& address, int port);

}  // namespace megalith
