// Choice of interfaces: those that the environment names, those that MASTER_ADDR leads to, and refusals.
#include "launch/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

const NetworkInterface kLo{"lo", true, {"127.0.0.1", "::1"}};
const NetworkInterface kEth0{"eth0", true, {"10.0.0.1", "fe80::1%eth0"}};
const NetworkInterface kEth1{"eth1", true, {"fe80::2%eth1", "2001:db8::1", "10.1.0.1"}};
const NetworkInterface kEth2{"eth2", false, {"10.2.0.1"}};
const NetworkInterface kIb0{"ib0", true, {}};

// Machine "node0" with the interfaces above. Everything that is not its own is reached over eth1.
HostNetwork node0() {
  return {.host_name = "node0",
          .interfaces = {kLo, kEth0, kEth1, kEth2, kIb0},
          .rdma_ports = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE"},
                         {.device = "mlx5_1", .port = 1, .state = "ACTIVE"},
                         {.device = "mlx5_10", .port = 2, .state = "DOWN"}},
          .resolve = [](const std::string& host) -> std::vector<std::string> {
            if (host == "nowhere") return {};
            if (host == "localhost") return {"::1", "127.0.0.1"};
            if (host == "node0") return {"127.0.1.1"};
            if (host == "both") return {"2001:db8::1", "10.1.0.1"};
            if (host == "mixed") return {"127.0.1.1", "10.0.0.1"};
            if (host == "far") return {"2001:db8::9", "10.9.0.1"};
            return {host};
          },
          .source_towards = [](const std::string& address) -> std::string {
            if (address == "192.0.2.1") return "";
            return address.find(':') == std::string::npos ? "10.1.0.1" : "2001:db8::1";
          }};
}

Launch launch_of(int rank, int num_ranks, int num_here, const std::string& address) {
  return {.launcher = Launcher::kTorchrun,
          .rank = rank,
          .world_size = num_ranks,
          .local_world_size = num_here,
          .master_address = address,
          .master_port = 29500};
}

const Launch kTwoMachines = launch_of(0, 2, 1, "10.0.0.1");

std::string error_with(const EnvironmentMap& environment, bool uses_gpus, const Launch& launch = kTwoMachines,
                       const HostNetwork& host = node0()) {
  try {
    choose_network(launch, uses_gpus, environment, host);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> gloo_addresses(const std::string& names) {
  return choose_network(kTwoMachines, false, {{"GLOO_SOCKET_IFNAME", names}}, node0()).gloo_addresses;
}

TEST(GlooInterfaces, EachNameGivesOneAddress) {
  using Addresses = std::vector<std::string>;
  EXPECT_EQ(gloo_addresses("eth0"), Addresses{"10.0.0.1"});
  EXPECT_EQ(gloo_addresses("eth1,eth0"), (Addresses{"10.1.0.1", "10.0.0.1"}));  // IPv4 before IPv6
  EXPECT_EQ(gloo_addresses(""), Addresses{});                                   // as if it were not set
  HostNetwork host = node0();
  host.interfaces = {{"e", true, {"fe80::2%e", "2001:db8::1"}}};  // a name of one letter, and no IPv4
  const Launch launch = launch_of(1, 2, 1, "far");
  EXPECT_EQ(choose_network(launch, false, {{"GLOO_SOCKET_IFNAME", "e"}}, host).gloo_addresses,
            Addresses{"2001:db8::1"});
}

TEST(GlooInterfaces, LoopbackIsForOneMachine) {
  const Launch here = launch_of(0, 2, 2, "127.0.0.1");
  const NetworkChoice choice = choose_network(here, false, {{"GLOO_SOCKET_IFNAME", "lo"}}, node0());
  EXPECT_EQ(choice.gloo_addresses, std::vector<std::string>{"127.0.0.1"});
}

TEST(NetworkErrors, NameTheVariableWhatIsWrongAndWhatIsThere) {
  const std::string has =
      "this machine (node0) has lo (127.0.0.1, ::1), eth0 (10.0.0.1, fe80::1%eth0), eth1 (fe80::2%eth1, 2001:db8::1, "
      "10.1.0.1), eth2 (down), ib0 (no address)";
  const std::string has_rdma = "this machine (node0) has mlx5_0:1, mlx5_1:1, mlx5_10:2 (down)";
  struct Case {
    bool uses_gpus;
    std::string name, value, problem, has;
  };
  const std::vector<Case> cases = {
      {false, "GLOO_SOCKET_IFNAME", "eth9", "'eth9' is not an interface of this machine", has},
      {false, "GLOO_SOCKET_IFNAME", "eth0,eth9", "'eth9' is not an interface of this machine", has},
      {false, "GLOO_SOCKET_IFNAME", "eth0, eth1", "' eth1' is not an interface of this machine", has},
      {false, "GLOO_SOCKET_IFNAME", "eth0,", "'' is not an interface of this machine", has},
      {false, "GLOO_SOCKET_IFNAME", "eth", "'eth' is not an interface of this machine", has},
      {false, "GLOO_SOCKET_IFNAME", "eth2", "'eth2' is down", has},
      {false, "GLOO_SOCKET_IFNAME", "ib0", "'ib0' has no address", has},
      {false, "GLOO_SOCKET_IFNAME", "lo", "'lo' cannot be reached from the other machines", has},
      {true, "NCCL_SOCKET_IFNAME", "ens", "no interface that other machines reach is left", has},
      {true, "NCCL_SOCKET_IFNAME", "=eth", "no interface that other machines reach is left", has},
      {true, "NCCL_SOCKET_IFNAME", "eth2", "no interface that other machines reach is left", has},
      {true, "NCCL_SOCKET_IFNAME", "ib", "no interface that other machines reach is left", has},
      {true, "NCCL_SOCKET_IFNAME", "lo", "no interface that other machines reach is left", has},
      {true, "NCCL_SOCKET_IFNAME", "^eth", "no interface that other machines reach is left", has},
      {true, "NCCL_IB_HCA", "rdma0,rdma1", "no device of this machine has such a name and port", has_rdma},
      {true, "NCCL_IB_HCA", "mlx5_0:2", "no device of this machine has such a name and port", has_rdma},
      {true, "NCCL_IB_HCA", "=mlx5", "no device of this machine has such a name and port", has_rdma},
      {true, "NCCL_IB_HCA", "mlx5_10", "none of these ports is active", has_rdma},
  };
  for (const Case& one : cases) {
    const std::string error = error_with({{one.name, one.value}}, one.uses_gpus);
    const std::string start = one.name + " is '" + one.value + "': " + one.problem;
    EXPECT_TRUE(error.starts_with(start)) << "expected: " << start << "\nfound: " << error;
    EXPECT_NE(error.find("; " + one.has + "\n"), std::string::npos) << error;
    EXPECT_NE(error.find("set " + one.name + " to what is there, or unset it"), std::string::npos) << error;
    EXPECT_EQ(error_with({{one.name, one.value}}, !one.uses_gpus), "") << one.name << " is for the other back end";
  }
  HostNetwork bare = node0();
  bare.interfaces.clear();
  bare.rdma_ports.clear();
  EXPECT_NE(error_with({{"GLOO_SOCKET_IFNAME", "eth0"}}, false, kTwoMachines, bare).find("has no network interface"),
            std::string::npos);
  const std::string both =
      error_with({{"NCCL_SOCKET_IFNAME", "ens"}, {"NCCL_IB_HCA", "mlx5"}}, true, kTwoMachines, bare);
  EXPECT_NE(both.find("NCCL_SOCKET_IFNAME is 'ens'"), std::string::npos) << "all are reported together: " << both;
  EXPECT_NE(both.find("has no InfiniBand or RoCE device"), std::string::npos) << both;
}

TEST(NcclInterfaces, PrefixesExactNamesAndExclusionsAreReadAsNcclDoes) {
  for (const char* value : {"eth", "eth0", "=eth0", "=eth0,eth1", "eth0:23", "^lo", "^docker,lo", "^=eth0", "^=eth"}) {
    const EnvironmentMap environment = {{"NCCL_SOCKET_IFNAME", value}};
    EXPECT_EQ(error_with(environment, true), "") << value;
    const NetworkChoice choice = choose_network(kTwoMachines, true, environment, node0());
    EXPECT_TRUE(choice.has_nccl_interface);
    EXPECT_TRUE(choice.notes.empty()) << value << ": " << choice.notes.front();
  }
  for (const char* value : {"mlx5", "=mlx5_0,mlx5_1", "mlx5_0:1", "mlx5_1:1,mlx5_0", "^mlx5_10", "^=mlx5_0", "^rdma"}) {
    const EnvironmentMap environment = {{"NCCL_IB_HCA", value}};
    EXPECT_EQ(error_with(environment, true), "") << value;
    EXPECT_TRUE(choose_network(kTwoMachines, true, environment, node0()).notes.empty()) << value;
  }
}

TEST(NcclInterfaces, WhatIsPartlyThereIsSaid) {
  const auto note = [](const std::string& name, const std::string& value) {
    const NetworkChoice choice = choose_network(kTwoMachines, true, {{name, value}}, node0());
    return choice.notes.size() == 1 ? choice.notes[0] : fmt::format("{} notes", choice.notes.size());
  };
  EXPECT_EQ(note("NCCL_SOCKET_IFNAME", "eth0,ens,ib0"),
            "NCCL_SOCKET_IFNAME names ens, ib0, of which rank 0's machine has nothing in use");
  EXPECT_EQ(note("NCCL_IB_HCA", "mlx5_1,mlx5_10:2,mlx5_7"),
            "NCCL_IB_HCA names mlx5_10:2, mlx5_7, of which rank 0's machine has nothing in use");
  EXPECT_NE(note("NCCL_IB_HCA", "^mlx5").find("leaves none of mlx5_0:1"), std::string::npos);
}

TEST(NcclInterfaces, DevicesThatAreNotUsedAreNotChecked) {
  EXPECT_EQ(error_with({{"NCCL_IB_HCA", "rdma0"}, {"NCCL_IB_DISABLE", "1"}}, true), "");
  EXPECT_NE(error_with({{"NCCL_IB_HCA", "rdma0"}, {"NCCL_IB_DISABLE", "0"}}, true), "");
  EXPECT_EQ(error_with({{"NCCL_IB_HCA", "rdma0"}}, true, launch_of(0, 2, 2, "127.0.0.1")), "");
}

TEST(MeetingAddress, IsTheOwnOneWhereTheMachineHasIt) {
  struct Case {
    std::string given, address, interface;
    int num_here;
  };
  const std::vector<Case> cases = {
      {"10.0.0.1", "10.0.0.1", "eth0", 1},
      {"2001:db8::1", "2001:db8::1", "eth1", 1},
      {"fe80::1%eth0", "fe80::1%eth0", "eth0", 1},
      {"both", "10.1.0.1", "eth1", 1},  // IPv4 first
      {"mixed", "10.0.0.1", "eth0", 1},
      {"mixed", "127.0.1.1", "", 2},  // all ranks are here, and everything in 127.0.0.0/8 is too
      {"localhost", "127.0.0.1", "lo", 2},
      {"::1", "::1", "lo", 2},
      {"node0", "127.0.1.1", "", 2},
      {"0.0.0.0", "127.0.0.1", "lo", 2},
      {"::", "::1", "lo", 2},
      {"10.0.0.1", "10.0.0.1", "eth0", 2},
  };
  for (const Case& one : cases) {
    const NetworkChoice choice = choose_network(launch_of(0, 2, one.num_here, one.given), false, {}, node0());
    EXPECT_TRUE(choice.owns_meeting_address) << one.given;
    EXPECT_EQ(choice.meeting_address, one.address) << one.given;
    EXPECT_EQ(choice.address, one.address) << one.given;
    EXPECT_EQ(choice.interface, one.interface) << one.given;
    EXPECT_TRUE(choice.notes.empty()) << one.given << ": " << choice.notes.front();
  }
}

TEST(MeetingAddress, ElsewhereItIsLeftAsItIsAndTheRouteChooses) {
  for (const auto& [given, address] :
       {std::pair{"10.9.0.1", "10.1.0.1"}, {"far", "10.1.0.1"}, {"2001:db8::9", "2001:db8::1"}}) {
    const NetworkChoice choice = choose_network(launch_of(1, 2, 1, given), false, {}, node0());
    EXPECT_FALSE(choice.owns_meeting_address);
    EXPECT_EQ(choice.meeting_address, given);
    EXPECT_EQ(choice.address, address);
    EXPECT_EQ(choice.interface, "eth1");
    EXPECT_TRUE(choice.notes.empty());
  }
  // Rank 0, whose address is translated (NAT).
  const NetworkChoice first = choose_network(launch_of(0, 2, 1, "10.9.0.1"), false, {}, node0());
  ASSERT_EQ(first.notes.size(), 1u);
  EXPECT_NE(first.notes[0].find("MASTER_ADDR 10.9.0.1 is not an address of rank 0's machine (node0)"),
            std::string::npos);
  Launch with_store = launch_of(0, 2, 1, "10.9.0.1");
  with_store.has_agent_store = true;
  EXPECT_TRUE(choose_network(with_store, false, {}, node0()).notes.empty()) << "rank 0 listens nowhere";
}

TEST(MeetingAddress, OfALaunchersStoreIsLeftAsItIs) {
  Launch launch = launch_of(0, 2, 1, "both");
  launch.has_agent_store = true;
  const NetworkChoice choice = choose_network(launch, false, {}, node0());
  EXPECT_EQ(choice.meeting_address, "both");
  EXPECT_EQ(choice.address, "10.1.0.1");
}

TEST(MeetingAddress, AMachineWhoseNameIsLoopbackHasOneWayOutOrIsRefused) {
  const Launch launch = launch_of(0, 2, 1, "node0");
  EXPECT_NE(error_with({}, false, launch).find("MASTER_ADDR is node0 (127.0.1.1), which each machine takes for itself"),
            std::string::npos);  // eth0 or eth1?
  HostNetwork host = node0();
  host.interfaces = {kLo, kEth0, kEth2};
  const NetworkChoice choice = choose_network(launch, false, {}, host);
  EXPECT_EQ(choice.meeting_address, "10.0.0.1");
  EXPECT_EQ(choice.interface, "eth0");
  host.host_name = "node0.cluster.example";
  EXPECT_EQ(choose_network(launch, false, {}, host).interface, "eth0");
  host.host_name = "node1";
  EXPECT_NE(error_with({}, false, launch, host), "");
  host.host_name = "localhost";  // as in containers that were given none
  EXPECT_NE(error_with({}, false, launch_of(0, 2, 1, "localhost"), host), "");
}

TEST(NetworkErrors, MeetingAddressesThatCannotBe) {
  for (const char* given : {"127.0.0.1", "127.3.2.1", "::1", "localhost", "0.0.0.0", "::", "::ffff:127.0.0.1"}) {
    const std::string error = error_with({}, false, launch_of(1, 4, 2, given));
    EXPECT_NE(
        error.find("which each machine takes for itself, and the 4 ranks are on several machines (2 on this one)"),
        std::string::npos)
        << error;
    EXPECT_NE(error.find("this machine (node0) has lo (127.0.0.1, ::1), eth0 (10.0.0.1"), std::string::npos) << error;
  }
  const std::string unknown = error_with({}, false, launch_of(1, 2, 1, "nowhere"));
  EXPECT_NE(unknown.find("MASTER_ADDR is 'nowhere', and node0 knows no such host"), std::string::npos) << unknown;
  const std::string unreachable = error_with({}, false, launch_of(1, 2, 1, "192.0.2.1"));
  EXPECT_NE(unreachable.find("no route leads from this machine (node0) to MASTER_ADDR 192.0.2.1"), std::string::npos)
      << unreachable;
}

TEST(NetworkErrors, AnAddressThatNoInterfaceHasIsNoPlaceForGloo) {
  HostNetwork host = node0();
  host.source_towards = [](const std::string&) { return "10.7.7.7"; };
  const Launch launch = launch_of(0, 2, 1, "10.9.0.1");
  const std::string error = error_with({}, false, launch, host);
  EXPECT_NE(error.find("packets to MASTER_ADDR 10.9.0.1 leave this machine (node0) from 10.7.7.7, which no interface "
                       "has; it has lo (127.0.0.1, ::1), eth0 (10.0.0.1"),
            std::string::npos)
      << error;
  EXPECT_EQ(error_with({{"GLOO_SOCKET_IFNAME", "eth0"}}, false, launch, host), "");
  EXPECT_EQ(error_with({}, true, launch, host), "") << "NCCL chooses";
  EXPECT_EQ(network_use(choose_network(launch, true, {}, host), true, true).nccl_interface, "");
}

TEST(NetworkUse, SeveralMachinesTalkOverTheWayToTheMeeting) {
  const NetworkChoice choice = choose_network(kTwoMachines, false, {}, node0());
  const NetworkUse gloo = network_use(choice, false, /*has_several_hosts=*/true);
  EXPECT_EQ(gloo.gloo_addresses, std::vector<std::string>{"10.0.0.1"});
  EXPECT_EQ(
      gloo.note,
      "rank 0 talks over eth0 (10.0.0.1), which leads to MASTER_ADDR; GLOO_SOCKET_IFNAME names another interface");
  const NetworkUse nccl = network_use(choice, true, true);
  EXPECT_EQ(nccl.nccl_interface, "eth0");
  EXPECT_NE(nccl.note.find("NCCL_SOCKET_IFNAME names another"), std::string::npos);
}

TEST(NetworkUse, OneMachineTalksOverLoopback) {
  const NetworkChoice choice = choose_network(launch_of(0, 2, 2, "10.0.0.1"), false, {}, node0());
  const NetworkUse gloo = network_use(choice, false, false);
  EXPECT_EQ(gloo.gloo_addresses, std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(gloo.note, "");
  EXPECT_EQ(network_use(choice, true, false).nccl_interface, "");
}

TEST(NetworkUse, WhatIsNamedIsTaken) {
  const NetworkChoice gloo = choose_network(kTwoMachines, false, {{"GLOO_SOCKET_IFNAME", "eth1"}}, node0());
  for (const bool has_several_hosts : {false, true}) {
    EXPECT_EQ(network_use(gloo, false, has_several_hosts).gloo_addresses, std::vector<std::string>{"10.1.0.1"});
    EXPECT_EQ(network_use(gloo, false, has_several_hosts).note, "");
  }
  const NetworkChoice nccl = choose_network(kTwoMachines, true, {{"NCCL_SOCKET_IFNAME", "eth1"}}, node0());
  EXPECT_EQ(network_use(nccl, true, true).nccl_interface, "");
  EXPECT_EQ(network_use(nccl, true, true).note, "");
}

TEST(ThisHost, HasALoopbackInterfaceThatIsUp) {
  const HostNetwork host = this_host();
  const auto lo = std::find_if(host.interfaces.begin(), host.interfaces.end(), [](const NetworkInterface& one) {
    return std::find(one.addresses.begin(), one.addresses.end(), "127.0.0.1") != one.addresses.end();
  });
  ASSERT_NE(lo, host.interfaces.end());
  EXPECT_TRUE(lo->is_up);
  EXPECT_FALSE(host.host_name.empty());
  EXPECT_EQ(host.resolve("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(host.source_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(host.resolve("no-such-host.invalid").empty());
  EXPECT_EQ(network_identity(), network_identity());
  EXPECT_GT(network_identity().size(), 20u);
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

bool is_listened_at(const char* address, int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::inet_pton(AF_INET, address, &to.sin_addr), 1);
  const bool is_accepted = ::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  ::close(socket);
  return is_accepted;
}

TEST(ListenOn, ListensOnOneAddressAndSaysWhenThePortIsTaken) {
  const int socket = listen_on("127.0.0.1", 0);
  const int port = port_of(socket);
  EXPECT_TRUE(is_listened_at("127.0.0.1", port));
  EXPECT_FALSE(is_listened_at("127.0.0.2", port)) << "all of 127.0.0.0/8 is this machine's";
  try {
    ::close(listen_on("127.0.0.1", port));
    ADD_FAILURE() << "two listen on one port";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("is in use"), std::string::npos) << error.what();
  }
  EXPECT_THROW(listen_on("192.0.2.1", 0), UserError);  // no address of this machine
  ::close(socket);
}

}  // namespace
}  // namespace megalith
