// The chunks of a model that a rank holds, run as one: forward, or forward and backward, of several microbatches
// through all stages of the pipeline. A pipeline of one rank and one chunk is the plain loop over microbatches.
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

// This rank's chunks, by chunk index, and the pipeline that they are part of.
struct ModelChunks {
  std::vector<Model*> models;
  PipelinePlan plan;
  DeferredGradients* deferred = nullptr;  // what the chunks' layers were built with

  ModelChunks(Model& whole);  // NOLINT: a whole model on one rank is its own only chunk
  ModelChunks(std::vector<Model*> models, PipelinePlan plan, DeferredGradients* deferred);
};

class PipelinedModel {
 public:
  // All that the chunks point to and groups outlive it.
  PipelinedModel(ModelChunks chunks, const Groups& groups, at::Device device);
  ~PipelinedModel();

  const ModelConfig& config() const;
  // See Model; the same on all ranks.
  std::vector<std::string> added_losses() const { return chunks_.models[0]->added_losses(); }
  std::vector<ObservationSpec> observations() const { return chunks_.models[0]->observations(); }
  void after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made);
  const PipelinePlan& plan() const { return chunks_.plan; }
  bool has_last_stage() const;

  // A microbatch as a chunk of these units takes it; called once for each microbatch and chunk, when it is about to
  // run.
  using MakeInput = std::function<ModelInput(int microbatch, std::span<const Unit> units)>;

  // Forward and backward of every microbatch. Gradients are in the Parameters' buffers afterwards.
  //   before_forward  called before each forward of this rank, with whether it is the rank's last
  //   on_output       called with what each forward of this rank's chunks gave
  void train(int num_microbatches, const MakeInput& make_input, const std::function<void(bool is_last)>& before_forward,
             const std::function<void(const ModelOutput&)>& on_output);

  // From now on train() replays graphs of its microbatches. The model must be one chunk on one rank, whose recipe
  // remembers nothing. Gradients are then complete only behind train(), which tells nobody of them before.
  void use_graphs(std::unique_ptr<MicrobatchGraphs> graphs);
  bool uses_graphs() const { return graphs_ != nullptr; }

  // Forward without gradients. on_output is called on the ranks that have the last stage.
  void evaluate(int num_microbatches, const MakeInput& make_input, HeadOutput head,
                const std::function<void(int microbatch, ModelOutput)>& on_output);

  // The same for one microbatch, with the logits or token losses on every rank of the pipeline.
  ModelOutput forward(const ModelInput& input, HeadOutput head);

  // What happened in the last train(), on every rank of this pipeline, as planner/pipeline_trace.h writes it. All of
  // them call it; the first has the text, the others an empty one.
  std::string gather_trace() const;
  // The next train() begins on all ranks of the pipeline at one moment, so that their times compare.
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
  std::map<std::pair<int, bool>, PipelineSchedule> schedules_;  // by microbatches and whether it trains; proven
  const PipelineSchedule* last_schedule_ = nullptr;             // of train()
  bool is_aligned_ = false;
  std::unique_ptr<MicrobatchGraphs> graphs_;  // null: the host tells the device every kernel
};

}  // namespace megalith
