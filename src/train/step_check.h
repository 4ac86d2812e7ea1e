// Silent corruption: whether a step computes the same bits again, and whether weights and optimizer state are still
// what the last update left. Names the rank that is at fault (check_determinism).
//
// A pass is the forward and backward of a whole step. On a checked step it runs twice from the same state and the same
// batch; where any bit of losses, gradients or of what travelled differs on any rank, a third pass says which of the
// two was wrong. Every rank tells what differed first on it. Whoever gave other bits although it had got the same ones
// is at fault; where nobody did, the collective is whose members gave the same bits and got others.
//
// A fault that gives the same wrong bits in every pass is not seen, nor is one in a step that is not repeated unless it
// lies in what is kept between steps. Source of the idea: Megatron-LM's rerun_state_machine, whose exit codes these
// are.
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
  int rank() const { return rank_; }  // in the world: the lowest that is at fault
  bool is_persistent() const { return is_persistent_; }
  int exit_code() const { return is_persistent_ ? kExitPersistentFault : kExitTransientFault; }
  // Whether weights and optimizer state are those of the last update, so that they may be saved.
  bool is_state_intact() const { return where_ != Where::kState; }

 private:
  Where where_;
  int rank_;
  bool is_persistent_;
};

// What one pass left on this rank, on the host.
struct PassBits {
  std::vector<CollectiveBits> collectives;  // whose digests are those of `digests`, in order
  std::vector<int64_t> digests;             // of the collectives' buffers, the gradients of the parts, the sums
};

// What differed first on a rank between two passes.
struct FirstDifference {
  enum class Kind { kNothing, kGave, kGot, kGradient, kSums };

  Kind kind = Kind::kNothing;
  std::string place;  // of a collective
  std::string text;   // the collective, or the parameter
};

// parts  whose gradients the digests are of, behind those of the collectives
FirstDifference first_difference(const PassBits& a, const PassBits& b, std::span<const OwnedPart> parts);

// Who is at fault, by what differed first on each rank of the world; gave_other(rank, place): whether what the rank
// gave to that collective differed. Empty: nothing differed.
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
  // What is kept between steps, in one order; the tensors' storages stay.
  using State = std::function<std::vector<CheckpointTensor>()>;

  // watch  of the groups' collectives; data, groups and watch outlive the check
  StepCheck(const DataParallel& data, const Groups& groups, std::shared_ptr<CollectiveWatch> watch, State state);

  // The state as it is now is what the next run() expects. Where it was moved: after an update, after loading.
  void remember();
  // Runs the pass, again if it is to be repeated, and compares; the gradients of the last pass are in the buffers.
  // iteration is the step's. Throws StepFault on all ranks when any finds one. Collective over the world; waits for the
  // device.
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
