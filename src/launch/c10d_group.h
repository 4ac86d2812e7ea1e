// Groups over LibTorch's c10d for ranks as processes: Gloo on CPUs, NCCL or RCCL on GPUs. Ranks meet in a TCP store
// served by the launcher or rank 0; a failing rank leaves its reason there.
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
#include "launch/roll_call.h"

namespace megalith {

// Others cannot be reached, or a collective broke because one is gone or late. Names collective, axis, ranks and, if
// known, the culprit.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class C10dGroup;

class C10dWorld {
 public:
  // Blocks until all ranks have come.
  //   launch     a single rank needs no address: it serves the store on any free port
  //   timeout_s  longest wait for others, here and in collectives
  //   terms      must be equal on all ranks
  //   on_hang    called on its own thread when any rank waits longer (watchdog.h); should end the process. Empty: the
  //              collective fails
  // UserError: no back end for the device, a network contradicting the environment, a port in use, ranks started twice
  // or with other world sizes or secrets. DifferentTerms. CommunicationError: others did not come.
  //   tolerance  if on, a broken or late collective throws on every rank and leaves the process to call_roll(), and a
  //              process that comes after the ranks met is_late() instead of being refused
  C10dWorld(const Launch& launch, c10::Device device, double timeout_s, const MeetingTerms& terms = {},
            std::function<void(const std::string& message)> on_hang = {}, const LossTolerance& tolerance = {});
  ~C10dWorld();
  C10dWorld(const C10dWorld&) = delete;
  C10dWorld& operator=(const C10dWorld&) = delete;

  // This process's among those that met, or in its era.
  int rank() const;
  int size() const;
  // Surprising choices.
  const std::vector<std::string>& notes() const;
  // The tensors' interface: "eth0", "lo".
  const std::string& interface() const;

  // Groups may outlive the world. They connect at their first collective or in Group::connect(), waiting for their
  // members.
  GroupFactory factory();

  // Records why this rank ends. Call while its groups exist: others notice their end. Not for a CommunicationError,
  // whose fault is elsewhere.
  void report_failure(std::string_view message) noexcept;

  // After report_failure(): the ranks ending with this message, ascending, this one included. The first prints it for
  // all, after a short wait for later ones.
  std::vector<int> ranks_that_end_with(std::string_view message) noexcept;

  // Blocks until all ranks are here: none ends while needed. CommunicationError.
  void finish();

  // ---- With LossTolerance
  // Came after the ranks met: has no groups until a roll call.
  bool is_late() const;
  // Collectives throw from now on, here and, as connections close, on the other ranks.
  bool is_lost() const;
  // Why; empty unless is_lost().
  std::string loss() const;
  // A collective may take patience_s from now on; before, the time-out.
  void begin_patience();
  // True once replacements wait that make `rules` choose more ranks. Asks the store twice a second. For one rank.
  bool has_joiners(const RollRules& rules);
  // Blocks until this process belongs to an era, perhaps long after it was left out of one. CommunicationError: the
  // store is gone, nothing whole is left. RunIsOver: the run has ended.
  //   on_left_out  called when an era begins without this process
  Era call_roll(const RollEntry& entry, const RollRules& rules, const std::function<void(const Era&)>& on_left_out);
  // The era's world, over the same store. Call before this one ends.
  std::unique_ptr<C10dWorld> next(const Era& era);

 private:
  friend class C10dGroup;
  struct Shared;
  explicit C10dWorld(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace megalith
