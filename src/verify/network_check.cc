#include "verify/network_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr int kUsualPort = 29500;

std::vector<UserError> errors_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserErrors& several) {
    return several.errors();
  } catch (const UserError& error) {
    return {error};
  }
  return {};
}

class NetworkFindings {
 public:
  void add(FindingLevel level, std::string check, std::string found, std::string remedy = "") {
    findings_.push_back({"ports", std::move(check), level, std::move(found), std::move(remedy)});
  }
  void add(FindingLevel level, const std::string& check, const std::vector<UserError>& errors) {
    for (const UserError& error : errors) {
      const bool is_known = std::any_of(findings_.begin(), findings_.end(),
                                        [&](const Finding& one) { return one.found == error.message(); });
      if (!is_known) add(level, check, error.message(), error.remedy());
    }
  }
  Findings take() { return std::move(findings_); }

 private:
  Findings findings_;
};

std::string environment_text(const EnvironmentMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

void add_interfaces(const HostNetwork& host, const Launch& launch, NetworkFindings& all) {
  std::vector<std::string> names;
  bool has_way_out = false;
  for (const NetworkInterface& interface : host.interfaces) {
    if (!interface.is_up || interface.addresses.empty()) continue;
    names.push_back(fmt::format("{} ({})", interface.name, join(interface.addresses, ", ")));
    has_way_out |= !std::all_of(interface.addresses.begin(), interface.addresses.end(), is_loopback_address);
  }
  const std::string text = names.empty() ? "none is up" : join(names, ", ");
  if (!has_way_out && !launch.is_one_machine()) {
    all.add(FindingLevel::kError, "interfaces", text + ", and there are ranks on other machines",
            "start the container with --network host, or see 'ip address' for what is down");
  } else {
    all.add(FindingLevel::kOk, "interfaces", text);
  }
}

// Reachable from other machines.
std::string reachable_address(const HostNetwork& host) {
  for (const NetworkInterface& interface : host.interfaces) {
    if (!interface.is_up) continue;
    for (const std::string& address : interface.addresses) {
      if (!is_loopback_address(address) && address.find('%') == std::string::npos) return address;
    }
  }
  return "";
}

// For a later run, on one machine and on several.
void add_variables(bool uses_gpus, const EnvironmentMap& environment, const HostNetwork& host, NetworkFindings& all) {
  const Launch here{.master_address = "127.0.0.1"};
  Launch with_others{.world_size = 2};
  with_others.master_address = reachable_address(host);
  for (const bool is_for_gpus : {uses_gpus, !uses_gpus}) {
    const FindingLevel level = is_for_gpus == uses_gpus ? FindingLevel::kError : FindingLevel::kWarning;
    const auto errors = [&](const Launch& launch) {
      return errors_of([&] { choose_network(launch, is_for_gpus, environment, host); });
    };
    for (const UserError& error : errors(here)) {
      // Loopback resolves: the variables are at fault.
      all.add(level, "variables", error.message(), error.remedy());
    }
    if (with_others.master_address.empty()) continue;
    for (const UserError& error : errors(with_others)) all.add(FindingLevel::kWarning, "variables", {error});
  }
}

void add_port(const Launch& launch, const std::string& address, const TryListen& listen, NetworkFindings& all) {
  const bool is_alone = launch.world_size == 1;
  const std::vector<UserError> errors = errors_of([&] { listen(address, launch.master_port); });
  if (errors.empty()) {
    all.add(FindingLevel::kOk, "port",
            fmt::format("{} is free at {}{}", launch.master_port, address,
                        is_alone ? ", where a run would meet unless MASTER_PORT says otherwise" : ""));
    return;
  }
  all.add(is_alone ? FindingLevel::kWarning : FindingLevel::kError, "port", errors);
}

}  // namespace

void try_listen(const std::string& address, int port) { ::close(listen_on(address, port)); }

Findings check_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment, const HostNetwork& host,
                       const TryListen& listen) {
  NetworkFindings all;
  add_interfaces(host, launch, all);
  const bool is_alone = launch.world_size == 1;
  Launch meeting = launch;
  if (is_alone) {
    add_variables(uses_gpus, environment, host, all);
    const std::string address = environment_text(environment, "MASTER_ADDR");
    const std::string port = environment_text(environment, "MASTER_PORT");
    meeting.master_address = address.empty() ? "127.0.0.1" : address;
    const bool is_number =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
    meeting.master_port = is_number ? std::stoi(port) : kUsualPort;
    if (!port.empty() && (!is_number || meeting.master_port > 65535 || meeting.master_port == 0)) {
      all.add(FindingLevel::kError, "port", fmt::format("MASTER_PORT is '{}', not a port", port),
              "set a number from 1 to 65535");
      return all.take();
    }
  }
  NetworkChoice choice;
  // Judged above without a launcher.
  const EnvironmentMap none;
  const std::vector<UserError> errors =
      errors_of([&] { choice = choose_network(meeting, uses_gpus, is_alone ? none : environment, host); });
  if (!errors.empty()) {
    all.add(is_alone ? FindingLevel::kWarning : FindingLevel::kError, "MASTER_ADDR", errors);
    return all.take();
  }
  for (const std::string& note : choice.notes) all.add(FindingLevel::kWarning, "MASTER_ADDR", note);
  if (!is_alone || !environment_text(environment, "MASTER_ADDR").empty()) {
    const std::string through =
        choice.interface.empty() ? "" : fmt::format(", through {} ({})", choice.interface, choice.address);
    all.add(
        FindingLevel::kOk, "MASTER_ADDR",
        fmt::format("{}{}{}", meeting.master_address, choice.owns_meeting_address ? ", this machine" : "", through));
  }
  if (meeting.has_agent_store) {
    if (meeting.rank == 0) {
      all.add(FindingLevel::kOk, "port",
              fmt::format("{} is served by {}", meeting.master_port, name_of(meeting.launcher)));
    }
  } else if (meeting.rank == 0 && (choice.owns_meeting_address || !is_alone)) {
    add_port(meeting, choice.owns_meeting_address ? choice.meeting_address : "0.0.0.0", listen, all);
  }
  return all.take();
}

}  // namespace megalith
