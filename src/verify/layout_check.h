// Whether a run that is spread over ranks is the run of one rank: losses, gradient norms, the gradient and the final
// value of every parameter, gathered by canonical name and compared element by element.
//
// What runs is what the trainer runs: its model, data parallelism, optimizer and step. The layout tests and
// `megalith doctor --parallel` (train/parallel_check.h) share this file.
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
};

// Trains for a few steps, through data, the model's blocks cut and run as its recomputation plans say. The weights are
// filled. built, data and groups outlive the call; the chunks' runners are void afterwards.
RankOutcome run_steps(const BuiltModel& built, DataParallel& data, const Groups& groups, at::Device device,
                      const CheckRun& run);

// Differences are relative to the largest element of each tensor; where that is below `floor` times the largest of all
// of its kind, to this. A gradient that vanishes by mathematics, such as that of a key's bias without rotary positions,
// is rounding errors alone, of the size of the others' rounding errors.
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

// The expert biases of a run against their rule, apart from the code that moves them: an expert with more tokens than
// the mean sinks, one with fewer rises, by `rate`. One rank and many would share a wrong sign. Empty, or what is wrong.
std::string find_wrong_bias_move(const RankOutcome& outcome, double rate);

}  // namespace megalith
