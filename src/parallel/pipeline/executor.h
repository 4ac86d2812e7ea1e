// Runs this rank's list of a pipeline schedule: chunks forward and backward, what travels between stages, and nothing
// else. It knows no model.
//
// Once a stage's outputs are sent, only their node of the graph is kept: backward starts from that node with the
// gradient that comes back, so their memory is free. Inputs are leaves of their own graph; their gradient is what is
// sent on. Neighbouring stages on one rank hand their tensors over.
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
  Bundle outputs;        // for the next stage; empty on the last one
  at::Tensor objective;  // 0-d, this stage's terms of the objective; undefined when it has none
};

// One of a rank's chunks, as the executor sees it.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // What this stage receives from the one before, decided per microbatch; empty on the first.
  virtual std::vector<TensorSpec> inputs(int microbatch) const = 0;
  // Autograd records when the schedule has backward actions for the microbatch.
  virtual StageResult forward(int microbatch, const Bundle& inputs) = 0;
  // Around the backward pass of a microbatch, its deferred weight gradients not included.
  virtual void before_backward(int /*microbatch*/) {}
  virtual void after_backward(int /*microbatch*/) {}
};

// What happened, for comparison with the simulator and for pictures.
struct ActionRecord {
  Action action;
  double start_s = 0, end_s = 0;  // since run() began; a send or receive: from its issue until it was waited for
  int live = 0;                   // graphs of (chunk, microbatch) held after it
};

class PipelineExecutor {
 public:
  // stages    this rank's chunks, by chunk index
  // deferred  where linears of these chunks put their weight gradients when asked to; null: no schedule with split
  //           backward can be run
  // All outlive it.
  PipelineExecutor(Group& pipeline, std::vector<PipelineStage*> stages, DeferredGradients* deferred, at::Device device);

  // Every rank of the pipeline calls it with the same schedule.
  // before  called before each computation of this rank (not for communication); may be empty
  void run(const PipelineSchedule& schedule, const std::function<void(const Action&)>& before = {});

  // What the last run did, in the order of this rank's list.
  const std::vector<ActionRecord>& records() const { return records_; }

 private:
  Group& pipeline_;
  std::vector<PipelineStage*> stages_;
  DeferredGradients* deferred_;
  at::Device device_;
  std::vector<ActionRecord> records_;
};

}  // namespace megalith
