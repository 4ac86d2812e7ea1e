// Whether a run that is spread over ranks is the run of one rank: losses, gradient norms, the gradient and the final
// value of every parameter, gathered by canonical name and compared element by element.
//
// It runs what the trainer runs: its model, data parallelism, optimizer and step. The layout tests and
// `megalith doctor --parallel` (parallel_check.h) share this file.
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

// What a rank knows of a canonical tensor: the elements that it holds. On the CPU.
struct Holding {
  at::Tensor value;    // canonical shape
  at::Tensor is_held;  // bool
};
using HoldingMap = std::map<std::string, Holding>;  // by canonical name

// Adds what a part holds to the canonical tensors of its pieces. value: of the part's extents.
void hold(const OwnedPart& part, const at::Tensor& value, HoldingMap& into);

// What a step did to the expert bias of one layer.
struct ExpertBiasMove {
  int step = 0;
  ExpertLoad load;
  at::Tensor moved;  // (e) double, the bias after the step less the one before
};

struct RankOutcome {
  std::vector<double> losses, grad_norms;  // of every step
  HoldingMap gradients;                    // of the first step
  HoldingMap parameters;                   // after the last
  std::vector<ExpertBiasMove> bias_moves;  // of the layers on this rank
};

struct CheckRun {
  int num_steps = 2;  // a wrong norm shows in the parameters of the first, a lost update in the second
  const Task* task = nullptr;
  // This rank's, in order; whole rows, with what the task draws for them.
  std::function<std::vector<Batch>(int step)> microbatches;
  OptimizerOptions optimizer;
  Kernels kernels = Kernels::kReference;
  double lr = 1e-2, weight_decay = 0.1;
  int graph_warmup_steps = 0;  // above 0: microbatches are graphs after so many steps
};

// Trains for a few steps, through data, the model's blocks cut and run as its recomputation plans say. The weights are
// filled. built, data and groups outlive the call; the chunks' runners are void afterwards.
RankOutcome run_steps(const BuiltModel& built, DataParallel& data, const Groups& groups, at::Device device,
                      const CheckRun& run);

// Differences are relative to the largest element of each tensor, but at least to `floor` times the largest element of
// all tensors of its kind. A gradient that is zero by mathematics, such as that of a key's bias without rotary
// positions, has only rounding errors, which are as large as those of the other tensors.
struct CheckTolerance {
  double relative = 1e-9, floor = 0;
};

struct Comparison {
  double worst = 0;                    // infinity when something is not finite or held by nobody
  std::string first_failure;           // rank, tensor, first bad index, both values; empty: all is within tolerance
  std::vector<std::string> differing;  // what else differs: "gradient of NAME", "loss"; none twice
  int64_t num_gradients = 0, num_parameters = 0;  // tensors that were compared

  bool is_ok() const { return first_failure.empty(); }
};

// ranks        outcomes of the ranks first_rank, first_rank + 1, …; all of the world, or one of several processes
// held_by_all  what some rank of the world holds, in gradients and parameters; null: the union over `ranks`
// Every element of every tensor must be held by somebody.
Comparison compare_with_one_rank(std::span<const RankOutcome> ranks, int first_rank, const RankOutcome& expected,
                                 const CheckTolerance& tolerance, const RankOutcome* held_by_all = nullptr);

// Checks the moves of expert biases against their rule, written here once more: the bias of an expert with more tokens
// than the mean falls by `rate`, with fewer it rises. (One rank and many would share a wrong sign.) "" when right.
std::string find_wrong_bias_move(const RankOutcome& outcome, double rate);

}  // namespace megalith
