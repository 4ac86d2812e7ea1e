// Owner of a port: this process, a process in the files of another machine, or none.
#include "launch/port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "launch/network.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

// Listens on a free port of the loopback interface while it lives, and never answers.
struct SilentListener {
  SilentListener() : socket(listen_on("127.0.0.1", 0)) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(socket); }
  int socket, port = 0;
};

TEST(PortOwner, IsAProcessOfThisMachine) {
  const SilentListener listener;
  const std::string owner = port_owner(listener.port);
  EXPECT_NE(owner.find(fmt::format("(process {})", ::getpid())), std::string::npos) << owner;
}

TEST(PortOwner, IsNobodyWhereNobodyListens) {
  int port = 0;
  {
    const SilentListener listener;
    port = listener.port;
    EXPECT_TRUE(accepts_connections("127.0.0.1", port, std::chrono::seconds(60)));
  }
  EXPECT_EQ(port_owner(port), "");
  EXPECT_FALSE(accepts_connections("127.0.0.1", port, std::chrono::seconds(60)));
}

TEST(PortOwner, IsThereAlsoWhenItResetsEveryConnection) {
  const SilentListener listener;
  std::thread server([&] {
    for (int client = ::accept(listener.socket, nullptr, nullptr); client >= 0;
         client = ::accept(listener.socket, nullptr, nullptr)) {
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      EXPECT_EQ(::setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
      ::close(client);
    }
  });
  // Chance decides how far a connection comes before it is reset.
  constexpr int kTries = 2000;
  int num_there = 0;
  for (int i = 0; i < kTries; ++i)
    num_there += accepts_connections("127.0.0.1", listener.port, std::chrono::seconds(60));
  ::shutdown(listener.socket, SHUT_RDWR);
  server.join();
  EXPECT_EQ(num_there, kTries);
}

// The tables of a machine where 29500 (0x733C) is listened on by user 1000, over IPv6.
void write_tables(const fs::path& proc) {
  fs::create_directories(proc / "net");
  const std::string head = "  sl  local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode\n";
  const std::string zeros = "00000000:00000000 00:00000000 00000000";
  const std::string any(32, '0');
  std::ofstream(proc / "net/tcp") << head << "   0: 0100007F:733C 0100007F:9C40 01 " << zeros << "  7 0 4710 1\n"
                                  << "   1: 0100007F:0016 00000000:0000 0A " << zeros << "  0 0 4709 1\n";
  std::ofstream(proc / "net/tcp6") << head << "   0: " << any << ":733C " << any << ":0000 0A " << zeros
                                   << "  1000 0 4711 1 0000000000000000 100 0 0 10 0\n";
}

TEST(PortOwner, IsSoughtAmongTheFilesOfAllProcesses) {
  const test::TemporaryFolder folder;
  const fs::path proc = folder.path();
  write_tables(proc);
  fs::create_directories(proc / "12/fd");
  fs::create_directories(proc / "345/fd");
  fs::create_symlink("socket:[4710]", proc / "12/fd/5");  // a connection of that port, which does not listen
  fs::create_symlink("socket:[4711]", proc / "345/fd/3");
  std::ofstream(proc / "345/comm") << "a server\n";
  EXPECT_EQ(port_owner(29500, proc), "a server (process 345)");
  EXPECT_EQ(port_owner(29501, proc), "");
}

TEST(PortOwner, IsAtLeastAUserWhenThisOneMayNotLook) {
  const test::TemporaryFolder folder;
  write_tables(folder.path());
  EXPECT_EQ(port_owner(29500, folder.path()), "a process of user 1000");
  EXPECT_EQ(port_owner(29500, folder.path() / "none"), "") << "no /proc";
}

}  // namespace
}  // namespace megalith
