// The network's check on machines that are made up.
#include "verify/network_check.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/error.h"

namespace megalith {
namespace {

HostNetwork made_up_host() {
  HostNetwork host;
  host.host_name = "gpu1";
  host.interfaces = {{"lo", true, {"127.0.0.1"}}, {"eth0", true, {"10.0.0.1"}}, {"ib0", false, {"10.1.0.1"}}};
  host.rdma_ports = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE", .rate = "", .link_layer = ""}};
  host.resolve = [](const std::string& name) -> std::vector<std::string> {
    if (name == "gpu1") return {"10.0.0.1"};
    if (name == "gpu0" || name == "10.0.0.9") return {"10.0.0.9"};
    if (name == "127.0.0.1" || name == "10.0.0.1") return {name};
    return {};
  };
  host.source_towards = [](const std::string& address) {
    return address.starts_with("10.0.0.") ? std::string("10.0.0.1") : std::string();
  };
  return host;
}

Launch two_machines(int rank) {
  Launch launch{.launcher = Launcher::kTorchrun, .rank = rank, .world_size = 2};
  launch.master_address = "gpu1";
  launch.master_port = 29500;
  return launch;
}

void is_free(const std::string&, int) {}
void is_taken(const std::string& address, int port) {
  throw UserError(fmt::format("port {} of {} is in use", port, address), "take another one");
}

const Finding* find_check(const Findings& findings, const std::string& check, FindingLevel at_least) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& one) { return one.check == check && one.level >= at_least; });
  return found == findings.end() ? nullptr : &*found;
}

int64_t num_problems(const Findings& findings) {
  return count_level(findings, FindingLevel::kWarning) + count_level(findings, FindingLevel::kError);
}

TEST(NetworkCheck, AGoodMachineHasNoProblem) {
  const Findings alone = check_network({}, false, {}, made_up_host(), is_free);
  EXPECT_EQ(num_problems(alone), 0) << findings_text(alone);
  EXPECT_NE(find_check(alone, "interfaces", FindingLevel::kOk)->found.find("eth0 (10.0.0.1)"), std::string::npos);
  EXPECT_NE(find_check(alone, "port", FindingLevel::kOk)->found.find("29500 is free"), std::string::npos);
  const EnvironmentMap good = {{"GLOO_SOCKET_IFNAME", "eth0"}, {"NCCL_SOCKET_IFNAME", "eth"}, {"NCCL_IB_HCA", "mlx5"}};
  for (const bool uses_gpus : {false, true}) {
    const Findings launched = check_network(two_machines(0), uses_gpus, good, made_up_host(), is_free);
    EXPECT_EQ(num_problems(launched), 0) << findings_text(launched);
    EXPECT_EQ(num_problems(check_network({}, uses_gpus, good, made_up_host(), is_free)), 0);
  }
}

TEST(NetworkCheck, APortInUseIsAnErrorForTheRankThatListensThere) {
  const Findings first = check_network(two_machines(0), false, {}, made_up_host(), is_taken);
  const Finding* error = find_check(first, "port", FindingLevel::kError);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->found, "port 29500 of 10.0.0.1 is in use");
  EXPECT_EQ(error->remedy, "take another one");
  EXPECT_EQ(num_problems(check_network(two_machines(1), false, {}, made_up_host(), is_taken)), 0);
  Launch served = two_machines(0);
  served.has_agent_store = true;
  EXPECT_EQ(num_problems(check_network(served, false, {}, made_up_host(), is_taken)), 0);
}

TEST(NetworkCheck, AloneAPortInUseIsAWarning) {
  const Findings findings = check_network({}, false, {{"MASTER_PORT", "1234"}}, made_up_host(), is_taken);
  const Finding* warning = find_check(findings, "port", FindingLevel::kWarning);
  ASSERT_NE(warning, nullptr);
  EXPECT_EQ(warning->level, FindingLevel::kWarning);
  EXPECT_EQ(warning->found, "port 1234 of 127.0.0.1 is in use");
  for (const char* port : {"none", "0", "70000", "123456789012"}) {
    const Findings wrong = check_network({}, false, {{"MASTER_PORT", port}}, made_up_host(), is_free);
    EXPECT_NE(find_check(wrong, "port", FindingLevel::kError), nullptr) << port;
  }
}

TEST(NetworkCheck, InterfacesThatAreNotThereOrDownAreNamed) {
  for (const char* name : {"eth7", "ib0"}) {
    const EnvironmentMap gloo = {{"GLOO_SOCKET_IFNAME", name}}, nccl = {{"NCCL_SOCKET_IFNAME", name}};
    const auto level_of = [](const Findings& findings, const std::string& text) {
      for (const Finding& finding : findings) {
        if (finding.level >= FindingLevel::kWarning && finding.found.find(text) != std::string::npos)
          return finding.level;
      }
      return FindingLevel::kOk;
    };
    // Launched: the back end in use counts.
    EXPECT_EQ(level_of(check_network(two_machines(1), false, gloo, made_up_host(), is_free), name),
              FindingLevel::kError);
    EXPECT_EQ(level_of(check_network(two_machines(1), true, nccl, made_up_host(), is_free), name),
              FindingLevel::kError);
    // Alone: the other back end's variable is worth a warning.
    EXPECT_EQ(level_of(check_network({}, false, gloo, made_up_host(), is_free), name), FindingLevel::kError);
    EXPECT_EQ(level_of(check_network({}, false, nccl, made_up_host(), is_free), name), FindingLevel::kWarning);
    EXPECT_EQ(level_of(check_network({}, true, nccl, made_up_host(), is_free), name), FindingLevel::kError);
  }
  // Devices between machines matter once there are several.
  const Findings hca = check_network({}, true, {{"NCCL_IB_HCA", "bnxt_re0"}}, made_up_host(), is_free);
  EXPECT_NE(find_check(hca, "variables", FindingLevel::kWarning), nullptr) << findings_text(hca);
}

TEST(NetworkCheck, AnAddressThatNobodyKnowsIsNamed) {
  Launch launch = two_machines(1);
  launch.master_address = "nowhere";
  const Findings findings = check_network(launch, false, {}, made_up_host(), is_free);
  const Finding* error = find_check(findings, "MASTER_ADDR", FindingLevel::kError);
  ASSERT_NE(error, nullptr);
  EXPECT_NE(error->found.find("nowhere"), std::string::npos);
  const Findings alone = check_network({}, false, {{"MASTER_ADDR", "nowhere"}}, made_up_host(), is_free);
  EXPECT_EQ(find_check(alone, "MASTER_ADDR", FindingLevel::kWarning)->level, FindingLevel::kWarning);
}

TEST(NetworkCheck, RankZeroElsewhereThanMasterAddrIsSeen) {
  Launch launch = two_machines(0);
  launch.master_address = "gpu0";
  const Findings findings = check_network(launch, false, {}, made_up_host(), is_free);
  const Finding* warning = find_check(findings, "MASTER_ADDR", FindingLevel::kWarning);
  ASSERT_NE(warning, nullptr) << findings_text(findings);
  EXPECT_NE(warning->found.find("gpu0"), std::string::npos);
}

TEST(NetworkCheck, AMachineWithoutAWayOutCannotTakePart) {
  HostNetwork host = made_up_host();
  host.interfaces.resize(1);
  EXPECT_NE(find_check(check_network(two_machines(1), false, {}, host, is_free), "interfaces", FindingLevel::kError),
            nullptr);
  EXPECT_EQ(find_check(check_network({}, false, {}, host, is_free), "interfaces", FindingLevel::kError), nullptr);
}

TEST(NetworkCheck, ARealPortInUseIsFound) {
  const int taken = listen_on("127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_THROW(try_listen("127.0.0.1", port), UserError);
  ::close(taken);
  EXPECT_NO_THROW(try_listen("127.0.0.1", port));
}

}  // namespace
}  // namespace megalith
