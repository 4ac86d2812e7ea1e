// Compares a run over ranks with one rank, with the trainer's model, data parallelism, optimizer and step: losses,
// gradient norms, and gradients and final values by canonical name and element.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "metrics/expert_load.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "train/setup.h"

namespace megalith {

// A rank's elements of a tensor, on the CPU.
struct Holding {
  at::Tensor value;    // canonical shape
  at::Tensor is_held;  // bool
};
using HoldingMap = std::map<std::string, Holding>;  // by canonical name

// Adds a part's elements to canonical tensors. value: the part's extents.
void hold(const OwnedPart& part, const at::Tensor& value, HoldingMap& into);

struct ExpertBiasMove {
  int step = 0;
  ExpertLoad load;
  at::Tensor moved;  // (e) double, after minus before the step
};

struct RankOutcome {
  std::vector<double> losses, grad_norms;  // by step
  HoldingMap gradients;                    // of the first step
  HoldingMap parameters;                   // after the last step
  std::vector<ExpertBiasMove> bias_moves;  // this rank's layers
};

struct CheckRun {
  int num_steps = 2;  // a wrong norm shows after the first step, a lost update after the second
  const Task* task = nullptr;
  // This rank's whole rows, in order, with the task's draws.
  std::function<std::vector<Batch>(int step)> microbatches;
  OptimizerOptions optimizer;
  Kernels kernels = Kernels::kReference;
  std::set<const Parameter*> resting;  // for the first rest_steps updates (Optimizer::let_rest)
  int64_t rest_steps = 0;
  double lr = 1e-2, weight_decay = 0.1;
  int graph_warmup_steps = 0;  // above 0: microbatches then become graphs
};

// Trains a few steps, recomputing as planned. Weights are initialised. built, data and groups outlive the call, which
// resets the chunks' runners.
RankOutcome run_steps(const BuiltModel& built, DataParallel& data, const Groups& groups, at::Device device,
                      const CheckRun& run);

// Relative to a tensor's largest element, at least `floor` times the largest of its kind: a mathematically zero
// gradient, such as a key bias's without rotary positions, has rounding as large as other tensors'.
struct CheckTolerance {
  double relative = 1e-9, floor = 0;
};

struct Comparison {
  double worst = 0;                               // infinity for non-finite or missing elements
  std::string first_failure;                      // rank, tensor, first bad index, both values; else empty
  std::vector<std::string> differing;             // unique: "gradient of NAME", "loss"
  int64_t num_gradients = 0, num_parameters = 0;  // compared

  bool is_ok() const { return first_failure.empty(); }
};

//   ranks        outcomes of first_rank, first_rank + 1, …: the world's, or one process's
//   held_by_all  elements held by any rank; null: the union over `ranks`
// Some rank must hold every element.
Comparison compare_with_one_rank(std::span<const RankOutcome> ranks, int first_rank, const RankOutcome& expected,
                                 const CheckTolerance& tolerance, const RankOutcome* held_by_all = nullptr);

// Checks expert biases against another implementation (one rank and many could share a wrong sign): with more tokens
// than the mean a bias falls by `rate`, with fewer it rises. "" if right.
std::string find_wrong_bias_move(const RankOutcome& outcome, double rate);

}  // namespace megalith
