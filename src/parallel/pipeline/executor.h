// Runs this rank's list of a pipeline schedule: forward, backward, transfers. Knows no model.
//
// Sent outputs keep only graph nodes, for backward with the incoming gradient; their memory is freed. Inputs are
// leaves, whose gradients are sent on. Adjacent stages on one rank hand tensors over.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "nn/deferred_gradients.h"
#include "nn/forward.h"
#include "parallel/pipeline/schedule.h"

namespace megalith {

struct StageResult {
  Bundle outputs;        // for the next stage; empty on the last
  at::Tensor objective;  // 0-d, this stage's terms of the objective; may be undefined
};

class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // Tensors received from the previous stage; empty on the first.
  virtual std::vector<TensorSpec> inputs(int microbatch) const = 0;
  // Autograd records if the schedule has the microbatch's backward.
  virtual StageResult forward(int microbatch, const Bundle& inputs) = 0;
  // Around a microbatch's backward, without deferred weight gradients.
  virtual void before_backward(int /*microbatch*/) {}
  virtual void after_backward(int /*microbatch*/) {}
};

// For comparison with the simulator, and for pictures.
struct ActionRecord {
  Action action;
  double start_s = 0, end_s = 0;  // since run() began; a transfer: from issue to completed wait
  int live = 0;                   // (chunk, microbatch) graphs held afterwards
};

class PipelineExecutor {
 public:
  // stages    this rank's chunks, by chunk index
  // deferred  receives these chunks' weight gradients when asked; null: schedules with split backward cannot run
  // All outlive it.
  PipelineExecutor(Group& pipeline, std::vector<PipelineStage*> stages, DeferredGradients* deferred, at::Device device);

  // Collective over the pipeline, with the same schedule.
  // before  called before each computation (not transfers); may be empty
  void run(const PipelineSchedule& schedule, const std::function<void(const Action&)>& before = {});

  // The last run, in list order.
  const std::vector<ActionRecord>& records() const { return records_; }

 private:
  Group& pipeline_;
  std::vector<PipelineStage*> stages_;
  DeferredGradients* deferred_;
  at::Device device_;
  std::vector<ActionRecord> records_;
};

}  // namespace megalith
