// Detects silent corruption (check_determinism) and names the rank at fault: a step must reproduce its bits; weights
// and optimizer state must be those of the last update.
//
// A checked step runs forward and backward twice from the same state and batch; if any bit of losses, gradients or
// messages differs on any rank, a third pass tells which was wrong. At fault is a rank that sent other bits although it
// received the same; if there is none, the collective whose members sent the same bits and received others.
//
// Faults that repeat identically go unseen, as do those in unchecked steps unless they persist in state. Source of the
// idea: Megatron-LM's rerun_state_machine, whose exit codes these are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/collective_watch.h"
#include "comm/groups.h"
#include "parallel/data_parallel.h"

namespace megalith {

constexpr int kExitTransientFault = 16, kExitPersistentFault = 17;

// Thrown by all ranks alike.
class StepFault : public std::runtime_error {
 public:
  enum class Where { kState, kComputation, kCollective };

  StepFault(const std::string& message, Where where, int rank, bool is_persistent)
      : std::runtime_error(message), where_(where), rank_(rank), is_persistent_(is_persistent) {}

  Where where() const { return where_; }
  int rank() const { return rank_; }  // world rank, the lowest at fault
  bool is_persistent() const { return is_persistent_; }
  int exit_code() const { return is_persistent_ ? kExitPersistentFault : kExitTransientFault; }
  // True if weights and optimizer state are those of the last update, so that they may be saved.
  bool is_state_intact() const { return where_ != Where::kState; }

 private:
  Where where_;
  int rank_;
  bool is_persistent_;
};

// A pass's bits on this rank, on the host.
struct PassBits {
  std::vector<CollectiveBits> collectives;  // whose digests begin `digests`, in order
  std::vector<int64_t> digests;             // of collectives' buffers, parts' gradients, sums
};

struct FirstDifference {
  enum class Kind { kNothing, kGave, kGot, kGradient, kSums };

  Kind kind = Kind::kNothing;
  std::string place;  // of a collective
  std::string text;   // the collective or the parameter
};

// parts  whose gradients' digests follow the collectives'
FirstDifference first_difference(const PassBits& a, const PassBits& b, std::span<const OwnedPart> parts);

// Ranks at fault, from each world rank's first difference; gave_other(rank, place): the rank's input to that collective
// differed. Empty: no difference.
struct Verdict {
  std::vector<int> ranks;
  StepFault::Where where = StepFault::Where::kComputation;
};
Verdict find_fault(std::span<const FirstDifference> differences,
                   const std::function<bool(int rank, const std::string& place)>& gave_other);

class StepCheck {
 public:
  // Runs a pass and returns this rank's losses and observations.
  using Pass = std::function<at::Tensor()>;
  // State kept between steps, in a fixed order; storages stay.
  using State = std::function<std::vector<CheckpointTensor>()>;

  // watch  of the groups' collectives; data, groups and watch outlive the check
  StepCheck(const DataParallel& data, const Groups& groups, std::shared_ptr<CollectiveWatch> watch, State state);

  // Records the state for the next run(). Call after updates and loads.
  void remember();
  // Runs the pass, twice if is_repeated, and compares; the last pass's gradients are in the buffers. Throws StepFault
  // on all ranks when any finds one. Collective over the world; waits for the device.
  void run(int64_t iteration, bool is_repeated, const Pass& pass);

 private:
  std::vector<int64_t> state_digests() const;
  PassBits run_pass(const Pass& pass);
  void check_state(int64_t iteration) const;
  [[noreturn]] void throw_difference(int64_t iteration, const PassBits& first, const PassBits& second,
                                     const Pass& pass);

  const DataParallel& data_;
  const Groups& groups_;
  std::shared_ptr<CollectiveWatch> watch_;
  State state_;
  std::vector<int64_t> remembered_;
};

}  // namespace megalith
