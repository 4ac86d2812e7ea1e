// `megalith doctor --parallel`: a parallel layout against one rank, at toy width.
//
// Float64 on reference operators, where differences above 1e-9 are mistakes; then float32 on the configured operators,
// for wrong kernels and lost conversions. With reset_attention_mask both check that documents do not interact.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/thread_devices.h"
#include "verify/check_batch.h"
#include "verify/layout_check.h"
#include "verify/toy_config.h"

namespace megalith {

// Tests' changes of the run over ranks, mistakes among them. Members may be empty.
struct CheckHooks {
  std::function<void(Groups& groups)> change_groups;                     // before building the model
  std::function<void(Model& chunk, const Groups& groups)> change_model;  // every chunk, before drawing weights
  std::function<void(std::vector<Batch>& batches, const Groups& groups)> change_batches;  // a step's, in order
  std::function<int(const Groups& groups)> data_rank;                                     // replaces the dp rank
  std::function<std::unique_ptr<DataParallel>(std::unique_ptr<DataParallel>, const BuiltModel&, const Groups&)>
      change_data_parallel;
  std::function<Batch(int step)> read;     // a step's global batch, instead of random rows
  const ThreadDevices* devices = nullptr;  // of the ranks; null: the CPU
  int graph_warmup_steps = 0;              // above 0: microbatches then become graphs
};

// Trains `resolved`, a toy, on ranks that are threads. Exceptions are theirs.
std::vector<RankOutcome> run_as_threads(const Resolved& resolved, const CheckHooks& hooks = {},
                                        std::optional<SilentDocument> silent = {});

struct ParallelReport {
  std::string failure;  // several lines; empty if it matches
  double worst = 0;     // relative, in float64
  int num_steps = 0;
  int64_t num_gradients = 0, num_parameters = 0;
  bool has_documents = false;  // were checked

  bool is_ok() const { return failure.empty(); }
};

class ParallelCheck {
 public:
  // say  receives a line before each piece of work; may be empty
  ParallelCheck(const Resolved& user, const ToyWorld& world, std::function<void(const std::string&)> say = {});

  // Ranks are threads, on the CPU. Their exceptions become the report.
  ParallelReport run_as_threads(const CheckHooks* hooks = nullptr);
  // This process is one of several ranks. Throws communication errors; failures agree on all ranks, by the text of the
  // first. groups: the toy layout's.
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
  // True without failures; else every rank gets a text.
  static bool agree_on(std::string& failure, const std::string& where, Group& world);
  // One pass of documents_; null groups: on threads.
  std::string find_touching(const ToyConfig& toy, const CheckHooks& hooks, Groups* groups, at::Device device) const;
  std::string judge(const Pass& pass, const Comparison& found, const std::string& why) const;

  std::vector<Pass> passes_;
  std::vector<ToyConfig> documents_;  // float64, float32; empty without reset_attention_mask
  std::function<void(const std::string&)> say_;
};

}  // namespace megalith
