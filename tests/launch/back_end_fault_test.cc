// Messages as c10d, Gloo and NCCL wrote them (torch 2.13), in our words; unforeseen ones lose only their decoration.
#include "launch/back_end_fault.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace megalith {
namespace {

struct FaultCase {
  std::string_view theirs, cause, remedy_part;
};

constexpr std::string_view kAtItsEnd = "the rank at its other end";

const FaultCase kFaultCases[] = {
    {"[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
     "[127.0.0.1]:34739. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
     "before reporting an error. GLHF! \xF0\x9F\x8F\x96\xEF\xB8\x8F",
     "the connection to 127.0.0.1 port 34739 was closed at its other end", kAtItsEnd},
    {"[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [fe80::1]:7",
     "the connection to fe80::1 port 7 was closed at its other end", kAtItsEnd},
    {"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:4711: Connection reset by peer",
     "the connection to 10.0.0.2 port 4711 was closed at its other end", kAtItsEnd},
    {"[../third_party/gloo/gloo/transport/tcp/pair.cc:322] writev [10.0.0.2]:4711: Broken pipe",
     "the connection to 10.0.0.2 port 4711 was closed at its other end", kAtItsEnd},
    {"[../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:25403: Connection refused",
     "nobody listens at 127.0.0.1 port 25403, where a rank was to be", kAtItsEnd},
    {"[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for "
     "recv operation to complete",
     "nothing came from another rank for 5.00 s", "--distributed_timeout_minutes"},
    {"[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for "
     "send operation to complete",
     "another rank took nothing of what was sent to it for 30 m 0 s", "--distributed_timeout_minutes"},
    {"wait timeout after 5000ms, keys: /0/2", "a rank left no word in the ranks' store for 5.00 s",
     "the other ranks do"},
    {"Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n"
     "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678 (most recent call first):",
     "the connection to the ranks' store was closed at its other end", kAtItsEnd},
    {"Failed to send, sent 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
     "the connection to the ranks' store was closed at its other end", kAtItsEnd},
    {"Broken pipe", "a connection was closed at its other end", kAtItsEnd},
    {"Connection reset by peer", "a connection was closed at its other end", kAtItsEnd},
    {"Connection refused", "nobody listens where another rank was to be", kAtItsEnd},
    {"The client socket has timed out after 4000ms while trying to connect to (127.0.0.1, 54971).",
     "no connection to 127.0.0.1 port 54971 came about", "megalith doctor"},
    {"The IPv4 network addresses of (no-such-host.invalid, 1234) cannot be retrieved (gai error: -2 - Name or service "
     "not known).",
     "nobody knows an address of the host no-such-host.invalid", "/etc/hosts"},
    {"Ping failed, invalid value returned from server. Expected: 11500, Got: 1347703880",
     "what listens there does not speak as the ranks' store", "MASTER_PORT"},
    {"The server socket has failed to listen on any local network address. port: 37535, useIpv6: false, code: -98, "
     "name: EADDRINUSE, message: address already in use",
     "another program has that address and port", "MASTER_PORT"},
    {"[enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] rv != -1. -1 vs -1. Unable to resolve "
     "hostname to a (local) address. ",
     "nobody knows an address of a host", "/etc/hosts"},
    {"[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:450] op.preamble.length <= op.nbytes. 4096 vs "
     "1024. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
     "another rank sent 4096 bytes where this one expects at most 1024", "report it"},
    {"socket: Too many open files", "this process may open no more files and connections", "ulimit -n"},
    {"NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a network "
     "error, NCCL version 2.27.5",
     "another rank ended, or the network between the ranks failed", kAtItsEnd},
};

TEST(BackEndFault, IsSaidInOurWords) {
  for (const FaultCase& one : kFaultCases) {
    const BackEndFault fault = translate_back_end_error(one.theirs);
    EXPECT_EQ(fault.cause, one.cause) << one.theirs;
    EXPECT_NE(fault.remedy.find(one.remedy_part), std::string::npos) << fault.remedy << "\n" << one.theirs;
  }
}

TEST(BackEndFault, WhatNobodyForesawLosesItsSourceFilesAndGreetings) {
  const auto cause = [](std::string_view theirs) { return translate_back_end_error(theirs).cause; };
  EXPECT_EQ(cause("[enforce fail at ../gloo/allreduce.cc:230] opts.elements > 0. 0 vs 0. \nstack:\n#0 main"),
            "opts.elements > 0. 0 vs 0");
  EXPECT_EQ(cause("[/a/b.cpp:1] outer failed with [/c/d.hpp:22] the cable is green. This may indicate a possible "
                  "application crash on rank 0 or a network set up issue."),
            "outer failed with the cable is green");
  EXPECT_EQ(cause("The moon is full (see https://example.org/moon for help)"), "The moon is full");
  EXPECT_EQ(cause("a [list] of 3: x"), "a [list] of 3: x") << "brackets without a source file stay";
  EXPECT_EQ(cause("GLHF! \xF0\x9F\x8F\x96"), "the library that moves the data gave no reason");
  EXPECT_EQ(cause(""), "the library that moves the data gave no reason");
  EXPECT_EQ(cause("\n\n"), "the library that moves the data gave no reason");
  EXPECT_EQ(cause(std::string(100'000, 'x')), std::string(300, 'x') + " ...");
}

TEST(BackEndFault, StandsBelowWhatFailed) {
  EXPECT_EQ(translate_back_end_error("the cable is green").text(),
            "\n  cause: the cable is green\n  see what the other ranks say");
}

}  // namespace
}  // namespace megalith
