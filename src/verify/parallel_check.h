// The parallel layout of a configuration against one rank, at toy width: what `megalith doctor --parallel` runs.
//
// Two passes: a few steps in float64 on the reference operators, where a difference above 1e-9 is a mistake and not
// rounding; then one in float32 on the configured operators, where a wrong kernel or a lost conversion shows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/layout_check.h"
#include "verify/toy_config.h"

namespace megalith {

// For tests: where a mistake is put into the run over ranks; the run on one rank has none. Every member may be empty.
struct CheckHooks {
  std::function<void(Groups& groups)> change_groups;                     // before the model is built
  std::function<void(Model& chunk, const Groups& groups)> change_model;  // of every chunk, before weights are drawn
  std::function<void(std::vector<Batch>& batches, const Groups& groups)> change_batches;  // a step's, in order
  std::function<int(const Groups& groups)> data_rank;                                     // instead of the dp rank
  std::function<std::unique_ptr<DataParallel>(std::unique_ptr<DataParallel>, const BuiltModel&, const Groups&)>
      change_data_parallel;
};

struct ParallelReport {
  std::string failure;  // several lines; empty: the layout is as one rank
  double worst = 0;     // relative difference in float64
  int num_steps = 0;
  int64_t num_gradients = 0, num_parameters = 0;

  bool is_ok() const { return failure.empty(); }
};

class ParallelCheck {
 public:
  // say  receives a line before each piece of work; may be empty
  ParallelCheck(const Resolved& user, const ToyWorld& world, std::function<void(const std::string&)> say = {});

  // Every rank a thread of this process, on the CPU. Nothing is thrown for what a rank throws: it is the report.
  ParallelReport run_as_threads(const CheckHooks* hooks = nullptr);
  // This process is one rank of several. Errors of communication are thrown; what is found is the same on all ranks,
  // with a text from the first that found something. groups: of the toy's layout.
  ParallelReport run_as_rank(Groups& groups, at::Device device);

  // In float64, and in float32.
  ToyConfig& toy() { return passes_[0].toy; }

 private:
  struct Pass {
    ToyConfig toy;
    CheckTolerance tolerance;
    std::string name;
    std::optional<RankOutcome> one_rank;
  };
  const RankOutcome& one_rank(Pass& pass, at::Device device);
  std::string judge(const Pass& pass, const Comparison& found, const std::string& why) const;

  std::vector<Pass> passes_;
  std::function<void(const std::string&)> say_;
};

}  // namespace megalith
