// A rank's chunks as one model: forward, or forward and backward, of several microbatches through all pipeline stages.
// A single rank and chunk is a plain loop over microbatches.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/groups.h"
#include "models/model.h"
#include "nn/deferred_gradients.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/pipeline_options.h"
#include "train/microbatch_graphs.h"

namespace megalith {

struct ModelChunks {
  std::vector<Model*> models;
  PipelinePlan plan;
  DeferredGradients* deferred = nullptr;  // the chunks' layers were built with it

  ModelChunks(Model& whole);  // NOLINT: a whole model on one rank is its only chunk
  ModelChunks(std::vector<Model*> models, PipelinePlan plan, DeferredGradients* deferred);
};

class PipelinedModel {
 public:
  // Everything that the chunks point to, and groups, outlive it.
  PipelinedModel(ModelChunks chunks, const Groups& groups, at::Device device);
  ~PipelinedModel();

  const ModelConfig& config() const;
  // See Model; the same on all ranks.
  std::vector<std::string> added_losses() const { return chunks_.models[0]->added_losses(); }
  std::vector<ObservationSpec> observations() const { return chunks_.models[0]->observations(); }
  void after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made);
  const PipelinePlan& plan() const { return chunks_.plan; }
  bool has_last_stage() const;

  // A microbatch as a chunk of these units takes it; called once per microbatch and chunk, just before running.
  using MakeInput = std::function<ModelInput(int microbatch, std::span<const Unit> units)>;

  // Forward and backward of every microbatch. Gradients are then in the Parameters' buffers.
  //   before_forward  called before each forward on this rank; is_last marks its last one
  //   on_output       called with the output of each forward of this rank's chunks
  void train(int num_microbatches, const MakeInput& make_input, const std::function<void(bool is_last)>& before_forward,
             const std::function<void(const ModelOutput&)>& on_output);

  // Makes train() replay graphs. One chunk on one rank, stateless recipe. Gradients are complete only after train(),
  // without earlier notification.
  void use_graphs(std::unique_ptr<MicrobatchGraphs> graphs);
  bool uses_graphs() const { return graphs_ != nullptr; }

  // Forward without gradients. on_output is called on ranks with the last stage.
  void evaluate(int num_microbatches, const MakeInput& make_input, HeadOutput head,
                const std::function<void(int microbatch, ModelOutput)>& on_output);

  // Likewise for one microbatch, with logits or token losses on every rank of the pipeline.
  ModelOutput forward(const ModelInput& input, HeadOutput head);

  // The trace of the last train() (planner/pipeline_trace.h). Collective over the pipeline; the first rank gets the
  // text, the others "".
  std::string gather_trace() const;
  // Aligns the next train()'s start over the pipeline, so that times compare.
  void align_next_run() { is_aligned_ = true; }

 private:
  class Stage;
  void train_with_graphs(int num_microbatches, const MakeInput& make_input,
                         const std::function<void(bool is_last)>& before_forward,
                         const std::function<void(const ModelOutput&)>& on_output);
  const PipelineSchedule& schedule_for(int num_microbatches, bool is_training);
  at::Tensor broadcast_from_head(const at::Tensor& mine, at::IntArrayRef shape, at::ScalarType dtype,
                                 std::string_view label);

  ModelChunks chunks_;
  const Groups& groups_;
  at::Device device_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::map<std::pair<int, bool>, PipelineSchedule> schedules_;  // by microbatches and is_training; checked
  const PipelineSchedule* last_schedule_ = nullptr;             // of train()
  bool is_aligned_ = false;
  std::unique_ptr<MicrobatchGraphs> graphs_;  // null: kernels are launched one by one
};

}  // namespace megalith
