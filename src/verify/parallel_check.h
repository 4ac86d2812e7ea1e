// `megalith doctor --parallel`: a configuration's parallel layout against one rank, at toy width.
//
// Two passes: float64 steps on reference operators, where differences above 1e-9 are mistakes; then one in float32 on
// the configured operators, which reveals wrong kernels and lost conversions. With reset_attention_mask both check that
// documents do not interact (document_check.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/layout_check.h"
#include "verify/toy_config.h"

namespace megalith {

// For tests: inserts a mistake into the run over ranks only. Members may be empty.
struct CheckHooks {
  std::function<void(Groups& groups)> change_groups;                     // before the model is built
  std::function<void(Model& chunk, const Groups& groups)> change_model;  // every chunk, before weights are drawn
  std::function<void(std::vector<Batch>& batches, const Groups& groups)> change_batches;  // of a step, in order
  std::function<int(const Groups& groups)> data_rank;                                     // instead of the dp rank
  std::function<std::unique_ptr<DataParallel>(std::unique_ptr<DataParallel>, const BuiltModel&, const Groups&)>
      change_data_parallel;
};

struct ParallelReport {
  std::string failure;  // several lines; empty: the layout matches one rank
  double worst = 0;     // relative difference in float64
  int num_steps = 0;
  int64_t num_gradients = 0, num_parameters = 0;
  bool has_documents = false;  // checked not to interact

  bool is_ok() const { return failure.empty(); }
};

class ParallelCheck {
 public:
  // say  receives a line before each piece of work; may be empty
  ParallelCheck(const Resolved& user, const ToyWorld& world, std::function<void(const std::string&)> say = {});

  // Every rank is a thread of this process, on the CPU. Ranks' exceptions become the report.
  ParallelReport run_as_threads(const CheckHooks* hooks = nullptr);
  // This process is one of several ranks. Communication errors are thrown; findings agree on all ranks, with the text
  // of the first that has any. groups: of the toy's layout.
  ParallelReport run_as_rank(Groups& groups, at::Device device);

  ToyConfig& toy() { return passes_[0].toy; }

 private:
  struct Pass {
    ToyConfig toy;
    CheckTolerance tolerance;
    std::string name;
    std::optional<RankOutcome> one_rank;
  };
  const RankOutcome& one_rank(Pass& pass, at::Device device);
  // True if no rank has a failure; otherwise every rank gets the text.
  static bool agree_on(std::string& failure, const std::string& where, Group& world);
  // Checks one pass of documents_, on threads or as a rank of `groups`.
  std::string find_touching(const ToyConfig& toy, const CheckHooks& hooks, Groups* groups, at::Device device) const;
  std::string judge(const Pass& pass, const Comparison& found, const std::string& why) const;

  std::vector<Pass> passes_;
  std::vector<ToyConfig> documents_;  // float64 and float32; empty without reset_attention_mask
  std::function<void(const std::string&)> say_;
};

}  // namespace megalith
