#include "train/pipelined_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/pipeline_simulator.h"
#include "planner/pipeline_trace.h"

namespace megalith {
namespace {

PipelinePlan plan_of_whole(const Model& model) {
  PipelinePlan plan;
  plan.units = model.part().units;
  plan.stages = {model.part().range};
  return plan;
}

}  // namespace

ModelChunks::ModelChunks(Model& whole) : models{&whole}, plan(plan_of_whole(whole)) {}

ModelChunks::ModelChunks(std::vector<Model*> chunks, PipelinePlan pipeline, DeferredGradients* deferred_gradients)
    : models(std::move(chunks)), plan(std::move(pipeline)), deferred(deferred_gradients) {}

class PipelinedModel::Stage : public PipelineStage {
 public:
  Stage(Model& model, bool is_first, const Groups& groups) : model_(model), is_first_(is_first), groups_(groups) {}

  struct Run {
    MakeInput make_input;
    HeadOutput head = HeadOutput::kLoss;
    std::function<void(int, ModelOutput)> on_output;
  };
  void begin(Run run) {
    run_ = std::move(run);
    made_.clear();
  }

  std::vector<TensorSpec> inputs(int microbatch) const override {
    if (is_first_) return {};
    // Inputs made for their shapes are kept for the forward pass.
    auto made = made_.find(microbatch);
    if (made == made_.end()) made = made_.emplace(microbatch, make(microbatch)).first;
    return model_.boundary(made->second.context);
  }

  StageResult forward(int microbatch, const Bundle& inputs) override {
    const auto made = made_.extract(microbatch);
    // Evaluation leaves the recipe's memory unchanged.
    RecipeMemory* memory = at::GradMode::is_enabled() ? model_.recipe_memory() : nullptr;
    if (memory != nullptr) memory->begin_forward(microbatch);
    ModelOutput output = model_.forward(made ? made.mapped() : make(microbatch), inputs, run_.head);
    if (memory != nullptr) memory->end_forward(microbatch, groups_);
    StageResult result{.outputs = std::move(output.boundary), .objective = {}};
    for (const LossTerm& term : output.terms) {
      if (!term.objective.defined()) continue;
      result.objective = result.objective.defined() ? result.objective + term.objective : term.objective;
    }
    if (run_.on_output) run_.on_output(microbatch, std::move(output));
    return result;
  }

  void before_backward(int microbatch) override {
    if (model_.recipe_memory() != nullptr) model_.recipe_memory()->begin_backward(microbatch);
  }
  void after_backward(int microbatch) override {
    if (model_.recipe_memory() != nullptr) model_.recipe_memory()->end_backward(microbatch, groups_);
  }

 private:
  ModelInput make(int microbatch) const { return run_.make_input(microbatch, model_.part().own_units()); }

  Model& model_;
  const bool is_first_;
  const Groups& groups_;
  Run run_;
  mutable std::map<int, ModelInput> made_;  // by microbatch: for coming forward passes
};

PipelinedModel::PipelinedModel(ModelChunks chunks, const Groups& groups, at::Device device)
    : chunks_(std::move(chunks)), groups_(groups), device_(device) {
  MEGALITH_CHECK(chunks_.plan.num_ranks == groups.pp->size(), "a pipeline of {} on {} ranks", chunks_.plan.num_ranks,
                 groups.pp->size());
  MEGALITH_CHECK(chunks_.plan.num_chunks == std::ssize(chunks_.models), "{} chunks of {}", chunks_.models.size(),
                 chunks_.plan.num_chunks);
  const PipelineShape shape = chunks_.plan.shape(1);
  std::vector<PipelineStage*> stages;
  for (int chunk = 0; chunk < chunks_.plan.num_chunks; ++chunk) {
    const int stage = shape.stage_of(groups.pp->rank(), chunk);
    stages_.push_back(std::make_unique<Stage>(*chunks_.models[static_cast<size_t>(chunk)], stage == 0, groups));
    stages.push_back(stages_.back().get());
  }
  executor_ = std::make_unique<PipelineExecutor>(*groups.pp, stages, chunks_.deferred, device);
}

PipelinedModel::~PipelinedModel() = default;

const ModelConfig& PipelinedModel::config() const { return chunks_.models[0]->config(); }

void PipelinedModel::after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) {
  for (Model* model : chunks_.models) model->after_step(observed, is_made);
}

bool PipelinedModel::has_last_stage() const {
  return std::any_of(chunks_.models.begin(), chunks_.models.end(),
                     [](const Model* model) { return model->part().is_last(); });
}

std::string PipelinedModel::gather_trace() const {
  MEGALITH_CHECK(last_schedule_ != nullptr, "a trace before the first step");
  // For each action: start, end, live.
  const auto& records = executor_->records();
  int64_t longest = 0;
  for (const auto& actions : last_schedule_->ranks) longest = std::max<int64_t>(longest, std::ssize(actions));
  const at::Tensor mine = at::zeros({longest, 3}, at::kDouble);
  auto numbers = mine.accessor<double, 2>();
  for (int64_t i = 0; i < std::ssize(records); ++i) {
    const ActionRecord& record = records[static_cast<size_t>(i)];
    numbers[i][0] = record.start_s;
    numbers[i][1] = record.end_s;
    numbers[i][2] = record.live;
  }
  const at::Tensor all = groups_.pp->gathered(mine.to(groups_.pp->device()), "times of the pipeline").to(at::kCPU);
  if (!groups_.pp->is_first()) return {};
  const auto times = all.view({groups_.pp->size(), longest, 3});
  const auto at = times.accessor<double, 3>();
  std::vector<std::vector<TimedAction>> ranks;
  for (size_t rank = 0; rank < last_schedule_->ranks.size(); ++rank) {
    auto& list = ranks.emplace_back();
    for (const Action& action : last_schedule_->ranks[rank]) {
      const auto& row = at[static_cast<int64_t>(rank)][std::ssize(list)];
      list.push_back({.action = action, .start = row[0], .end = row[1], .live = static_cast<int>(row[2])});
    }
  }
  return pipeline_trace_json(*last_schedule_, ranks);
}

const PipelineSchedule& PipelinedModel::schedule_for(int num_microbatches, bool is_training) {
  const auto key = std::pair(num_microbatches, is_training);
  auto found = schedules_.find(key);
  if (found == schedules_.end()) {
    PipelineSchedule schedule = is_training
                                    ? chunks_.plan.schedule(num_microbatches)
                                    : with_communication(make_forward_schedule(chunks_.plan.shape(num_microbatches)));
    // Throws here if the lists would deadlock.
    check_pipeline_schedule(schedule);
    found = schedules_.emplace(key, std::move(schedule)).first;
  }
  return found->second;
}

void PipelinedModel::use_graphs(std::unique_ptr<MicrobatchGraphs> graphs) {
  MEGALITH_CHECK(chunks_.plan.num_ranks == 1 && std::ssize(chunks_.models) == 1, "graphs of a pipeline");
  MEGALITH_CHECK(chunks_.models[0]->recipe_memory() == nullptr, "graphs with a recipe that remembers");
  graphs_ = std::move(graphs);
}

void PipelinedModel::train_with_graphs(int num_microbatches, const MakeInput& make_input,
                                       const std::function<void(bool)>& before_forward,
                                       const std::function<void(const ModelOutput&)>& on_output) {
  const at::AutoGradMode record(true);
  const PipelineSchedule& schedule = schedule_for(1, /*is_training=*/true);
  const auto body = [&](const ModelInput& input) {
    ModelOutput output;
    stages_[0]->begin({.make_input = [&](int, std::span<const Unit>) { return input; },
                       .head = HeadOutput::kLoss,
                       .on_output = [&](int, ModelOutput own) { output = std::move(own); }});
    executor_->run(schedule);
    return output;
  };
  graphs_->begin_step();
  for (int m = 0; m < num_microbatches; ++m) {
    before_forward(m + 1 == num_microbatches);
    on_output(graphs_->run(make_input(m, chunks_.models[0]->part().own_units()), body));
  }
  last_schedule_ = &schedule;
}

void PipelinedModel::train(int num_microbatches, const MakeInput& make_input,
                           const std::function<void(bool)>& before_forward,
                           const std::function<void(const ModelOutput&)>& on_output) {
  for (Model* model : chunks_.models) model->begin_step();
  if (graphs_) return train_with_graphs(num_microbatches, make_input, before_forward, on_output);
  const PipelineSchedule& schedule = schedule_for(num_microbatches, /*is_training=*/true);
  for (const auto& stage : stages_) {
    stage->begin({.make_input = make_input, .head = HeadOutput::kLoss, .on_output = [&](int, ModelOutput output) {
                    on_output(output);
                  }});
  }
  int num_forwards = num_microbatches * chunks_.plan.num_chunks;
  if (std::exchange(is_aligned_, false)) groups_.pp->barrier("beginning of a traced step").wait();
  const at::AutoGradMode record(true);
  const auto for_each_memory = [&](void (RecipeMemory::*call)()) {
    for (const Model* model : chunks_.models) {
      if (model->recipe_memory() != nullptr) (model->recipe_memory()->*call)();
    }
  };
  for_each_memory(&RecipeMemory::begin_step);
  executor_->run(schedule, [&](const Action& action) {
    if (action.kind == ActionKind::kForward) before_forward(--num_forwards == 0);
  });
  for_each_memory(&RecipeMemory::end_step);
  last_schedule_ = &schedule;
}

void PipelinedModel::evaluate(int num_microbatches, const MakeInput& make_input, HeadOutput head,
                              const std::function<void(int, ModelOutput)>& on_output) {
  const at::NoGradGuard no_grad;
  for (size_t chunk = 0; chunk < stages_.size(); ++chunk) {
    Stage::Run run{.make_input = make_input, .head = head, .on_output = {}};
    if (chunks_.models[chunk]->part().is_last()) run.on_output = on_output;
    stages_[chunk]->begin(std::move(run));
  }
  executor_->run(schedule_for(num_microbatches, /*is_training=*/false));
}

at::Tensor PipelinedModel::broadcast_from_head(const at::Tensor& mine, at::IntArrayRef shape, at::ScalarType dtype,
                                               std::string_view label) {
  if (groups_.pp->size() == 1) return mine;
  const at::Tensor tensor =
      has_last_stage() ? mine.contiguous() : at::empty(shape, at::TensorOptions(device_).dtype(dtype));
  const PipelineShape shape_of_pipeline = chunks_.plan.shape(1);
  groups_.pp->broadcast(tensor, shape_of_pipeline.rank_of(shape_of_pipeline.num_stages() - 1), label).wait();
  return tensor;
}

ModelOutput PipelinedModel::forward(const ModelInput& input, HeadOutput head) {
  ModelOutput output;
  evaluate(
      1, [&](int, std::span<const Unit>) { return input; }, head,
      [&](int, ModelOutput own) { output = std::move(own); });
  const int64_t b = input.context.b, s = input.context.s;
  const at::ScalarType wide = chunks_.models[0]->dtype() == at::kDouble ? at::kDouble : at::kFloat;
  if (head == HeadOutput::kTokenLosses) {
    output.token_losses = broadcast_from_head(output.token_losses, {b, s}, wide, "token losses");
  } else if (head != HeadOutput::kLoss) {
    const int64_t rows = head == HeadOutput::kLastLogits ? 1 : config().output_rows(s);
    output.logits = broadcast_from_head(output.logits, {b, rows, config().output_width()}, chunks_.models[0]->dtype(),
                                        "logits");
  }
  return output;
}

}  // namespace megalith
