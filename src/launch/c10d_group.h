// Groups over LibTorch's c10d, for ranks that are processes: Gloo for tensors on the CPU, NCCL or RCCL for those on a
// GPU where it was compiled in. The ranks meet in a key-value store over TCP, the launcher's own or one that rank 0
// serves. Later a rank that fails leaves its reason in that store, so that the others can say why their collectives
// broke.
//
// Environment: network.h says which network interfaces are taken.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/groups.h"
#include "launch/launch.h"
#include "launch/meeting_terms.h"

namespace megalith {

// The others could not be reached, or a collective broke because one of them is gone or did not come in time. The
// message names the collective, its axis and ranks, and as far as known the rank at fault.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class C10dGroup;

class C10dWorld {
 public:
  // Meets the other ranks; returns when all have come.
  //   launch     who meets where. A single rank, for checks of a back end, needs no address: it serves the store on a
  //              free port of this machine
  //   device     where this rank computes
  //   timeout_s  longest wait for the others here and in every collective
  //   terms      what must be the same on all ranks
  //   on_hang    called with a message on a thread of its own when any rank waits longer than that, see watchdog.h; it
  //              should leave the process. Without it nobody watches, and the collective fails by itself
  // UserError: the build lacks the back end for the device, the network is not as the environment says (network.h),
  // the port is taken, ranks were started twice, with different world sizes or another secret. DifferentTerms.
  // CommunicationError: the others did not come.
  C10dWorld(const Launch& launch, c10::Device device, double timeout_s, const MeetingTerms& terms = {},
            std::function<void(const std::string& message)> on_hang = {});
  ~C10dWorld();
  C10dWorld(const C10dWorld&) = delete;
  C10dWorld& operator=(const C10dWorld&) = delete;

  // Choices made for this run that may surprise.
  const std::vector<std::string>& notes() const;
  // The network interface over which tensors travel, as the environment names it or as it was chosen: "eth0", "lo".
  const std::string& interface() const;

  // Makes this rank's groups; they keep alive what they need of the world. A group waits for its members when it
  // connects, at its first collective or in Group::connect().
  GroupFactory factory();

  // Leaves word of why this rank ends. To be called while its groups still exist: their end is what others notice. A
  // CommunicationError need not be reported, somebody else is at fault.
  void report_failure(std::string_view message) noexcept;

  // After report_failure(): which ranks end with this very message, this one included, ascending. The first of them
  // says it for all. It waits a little for those that come later; the others return when they see one before them.
  std::vector<int> ranks_that_end_with(std::string_view message) noexcept;

  // Returns when all ranks have come here, so that none ends while others still need it. CommunicationError.
  void finish();

 private:
  friend class C10dGroup;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace megalith
