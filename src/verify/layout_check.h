// Compares a run over ranks with a run on one: losses, gradient norms, every gradient and final value, by canonical
// name and element, with the trainer's model, data parallelism, optimizer and step. For layout tests and `megalith
// doctor --parallel` (parallel_check.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "metrics/expert_load.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "train/setup.h"

namespace megalith {

// A rank's elements of a canonical tensor, on the CPU.
struct Holding {
  at::Tensor value;    // canonical shape
  at::Tensor is_held;  // bool
};
using HoldingMap = std::map<std::string, Holding>;  // by canonical name

// Adds a part's elements to its pieces' canonical tensors. value: of the part's extents.
void hold(const OwnedPart& part, const at::Tensor& value, HoldingMap& into);

// A step's change of one layer's expert bias.
struct ExpertBiasMove {
  int step = 0;
  ExpertLoad load;
  at::Tensor moved;  // (e) double, bias after the step minus before
};

struct RankOutcome {
  std::vector<double> losses, grad_norms;  // by step
  HoldingMap gradients;                    // of the first step
  HoldingMap parameters;                   // after the last step
  std::vector<ExpertBiasMove> bias_moves;  // of this rank's layers
};

struct CheckRun {
  int num_steps = 2;  // a wrong norm shows in the first step's parameters, a lost update in the second's
  const Task* task = nullptr;
  // This rank's, in order; whole rows, with the task's draws.
  std::function<std::vector<Batch>(int step)> microbatches;
  OptimizerOptions optimizer;
  Kernels kernels = Kernels::kReference;
  double lr = 1e-2, weight_decay = 0.1;
  int graph_warmup_steps = 0;  // above 0: then microbatches become graphs
};

// Trains a few steps through data, with blocks run by the recomputation plans. Weights are initialised. built, data and
// groups outlive the call; it voids the chunks' runners.
RankOutcome run_steps(const BuiltModel& built, DataParallel& data, const Groups& groups, at::Device device,
                      const CheckRun& run);

// Relative to each tensor's largest element, but at least `floor` times the largest of its kind: a mathematically zero
// gradient, such as a key bias's without rotary positions, has rounding errors as large as other tensors'.
struct CheckTolerance {
  double relative = 1e-9, floor = 0;
};

struct Comparison {
  double worst = 0;                               // infinity for non-finite or missing elements
  std::string first_failure;                      // rank, tensor, first bad index, both values; empty: within tolerance
  std::vector<std::string> differing;             // all differing items, "gradient of NAME" or "loss", unique
  int64_t num_gradients = 0, num_parameters = 0;  // compared tensors

  bool is_ok() const { return first_failure.empty(); }
};

// ranks        outcomes of the ranks first_rank, first_rank + 1, …; all of the world, or one of several processes
// held_by_all  the elements held by any rank of the world; null: the union over `ranks`
// Every element must be held by some rank.
Comparison compare_with_one_rank(std::span<const RankOutcome> ranks, int first_rank, const RankOutcome& expected,
                                 const CheckTolerance& tolerance, const RankOutcome* held_by_all = nullptr);

// Checks expert biases against a second implementation of their rule (one rank and many could share a wrong sign): with
// more tokens than the mean an expert's bias falls by `rate`, with fewer it rises. "" if right.
std::string find_wrong_bias_move(const RankOutcome& outcome, double rate);

}  // namespace megalith
