// Groups over LibTorch's c10d, for ranks that are processes: Gloo for CPU tensors, NCCL or RCCL for GPUs if compiled
// in. Ranks meet in a store over TCP, served by the launcher or rank 0; a failing rank leaves its reason there for the
// others. Network interfaces: network.h.
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

// The others cannot be reached, or a collective broke because one is gone or late. The message names collective, axis,
// ranks and, if known, the rank at fault.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class C10dGroup;

class C10dWorld {
 public:
  // Meets the other ranks; returns when all have come.
  //   launch     a single rank, for checks of a back end, needs no address: it serves the store on any free port
  //   device     where this rank computes
  //   timeout_s  longest wait for others, here and in every collective
  //   terms      must be the same on all ranks
  //   on_hang    called with a message, on its own thread, when any rank waits longer (watchdog.h); should end the
  //              process. If empty, there is no watchdog, and the collective itself fails
  // UserError: no back end for the device, a network that contradicts the environment (network.h), a port in use, ranks
  // started twice or with other world sizes or secrets. DifferentTerms. CommunicationError: others did not come.
  C10dWorld(const Launch& launch, c10::Device device, double timeout_s, const MeetingTerms& terms = {},
            std::function<void(const std::string& message)> on_hang = {});
  ~C10dWorld();
  C10dWorld(const C10dWorld&) = delete;
  C10dWorld& operator=(const C10dWorld&) = delete;

  // Choices that may surprise.
  const std::vector<std::string>& notes() const;
  // The interface that tensors use, given or chosen: "eth0", "lo".
  const std::string& interface() const;

  // Makes this rank's groups, which may outlive the world. A group connects to its members at its first collective or
  // in Group::connect(), and waits for them.
  GroupFactory factory();

  // Records why this rank ends. Call while its groups exist, because others notice their end; not for a
  // CommunicationError, whose fault is elsewhere.
  void report_failure(std::string_view message) noexcept;

  // After report_failure(): the ranks ending with this same message, this one included, ascending. The first prints it
  // for all: it waits briefly for later ones, the others only for earlier ones.
  std::vector<int> ranks_that_end_with(std::string_view message) noexcept;

  // Returns when all ranks are here, so that none ends while others need it. CommunicationError.
  void finish();

 private:
  friend class C10dGroup;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace megalith
