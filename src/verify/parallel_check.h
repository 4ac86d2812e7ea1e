// The parallel layout of a configuration against one rank, at toy width: what `megalith doctor --parallel` runs.
//
// Two passes: a few steps in float64 on the reference operators, where a difference above 1e-9 is a mistake and not
// rounding; then one in float32 on the configured operators, where a wrong kernel or a lost conversion shows. With
// reset_attention_mask also whether documents touch (document_check.h), on the layout in both precisions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/layout_check.h"
#include "verify/toy_config.h"

namespace megalith {

// For tests: puts a mistake into the run over ranks, but not into the run on one rank. Every member may be empty.
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
  bool has_documents = false;  // which do not touch

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
  // Whether no rank has found anything; otherwise every rank has a text.
  static bool agree_on(std::string& failure, const std::string& where, Group& world);
  // Runs the check of one pass of documents_; on threads, or as a rank of `groups`.
  std::string find_touching(const ToyConfig& toy, const CheckHooks& hooks, Groups* groups, at::Device device) const;
  std::string judge(const Pass& pass, const Comparison& found, const std::string& why) const;

  std::vector<Pass> passes_;
  std::vector<ToyConfig> documents_;  // in float64 and float32; none without reset_attention_mask
  std::function<void(const std::string&)> say_;
};

}  // namespace megalith
