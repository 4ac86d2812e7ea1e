// A kind of model as a run sees it: samples, rules, data, tasks, reports. One object a kind, in src/kinds/; nothing
// here or below names one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "config/yaml_document.h"
#include "core/error.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "metrics/step_record.h"
#include "models/model.h"
#include "parallel/data_parallel.h"
#include "train/task.h"

namespace megalith {

struct Config;
struct Derived;
struct Resolved;
class PipelinedModel;

// Shows during training the model's output for the run's prompt (train/sample_options.h). Only reads weights: runs are
// bit-identical without it.
class RunSamples {
 public:
  virtual ~RunSamples() = default;
  // Called on every rank of the model.
  virtual void show(PipelinedModel& model, int64_t iteration,
                    const std::vector<std::unique_ptr<MetricsSink>>& sinks) = 0;
};

// Adds another model's outputs to batches.
class References {
 public:
  virtual ~References() = default;
  //   is_at_start  the weights are the initial ones
  virtual void attach(DataSets& data, bool is_at_start) = 0;
  virtual void add_to(std::vector<Batch>& batches) = 0;
};

// A model and its ranks; all outlive what is made of them.
struct RunModel {
  PipelinedModel& model;
  DataParallel& data;
  const Groups& groups;
  at::Device device;
};

// One explicit input, as for `megalith inspect logits`.
struct GivenInput {
  std::vector<int64_t> prompt_ids, target_ids, prompt_token_types;
  std::optional<std::string> inputs_file;
  bool has_targets = false;  // compute a loss
};

class Kind {
 public:
  virtual ~Kind() = default;

  virtual ModelType type() const = 0;
  virtual std::string_view default_task() const = 0;  // a word of --task; empty: the option's default

  // A sample: s tokens in the labels' sequence, encoder_s in an encoder's or a caption. Both are seq_length without
  // decoder_seq_length, which commands without data may lack.
  virtual CostShape sample_shape(const Resolved& run) const = 0;
  virtual int64_t tokens_per_sample(const Resolved& run) const { return sample_shape(run).s; }
  // Completes a storage-free microbatch of (b, s) tokens and labels, for measuring memory.
  virtual void complete_shapes(ModelInput& /*input*/, const Resolved& /*run*/, int64_t /*encoder_s*/) const {}

  // Rules. Sets d.seq_length.
  virtual void check_sequence(const Config& config, Derived& d, std::vector<UserError>& errors) const = 0;
  virtual void check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const = 0;
  // Errors for layouts that such models lack.
  virtual void check_layout(const Config& /*config*/, std::vector<UserError>& /*errors*/) const {}
  // UserError for options that the task does not support.
  virtual std::unique_ptr<Task> make_task(const Resolved& run) const = 0;
  virtual void check_task(const Resolved& run, std::vector<UserError>& errors) const = 0;

  // Data and weights. Before allocation: errors of the files that options name.
  virtual std::vector<UserError> check_data(Resolved& run) const = 0;
  virtual std::vector<UserError> check_weights(const Resolved& /*run*/) const { return {}; }
  // Replaces hub names in run.derived by local paths.
  virtual void fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                            std::vector<UserError>& errors) const = 0;
  // Converts files to what batches are read from, once for all runs, and names that in run.derived.
  virtual void prepare_data(Resolved& run, Logger& log) const = 0;
  // True if data are texts for the loaded model's tokenizer, unless another is named.
  virtual bool reads_texts(const Config& config) const = 0;
  // Training sequences in one pass; after prepare_data().
  virtual int64_t count_sequences(const Resolved& run) const = 0;
  // Initial weights other than --load and --load_hf.
  virtual bool load_first_weights(const Resolved& /*run*/, std::span<const CheckpointTensor> /*tensors*/,
                                  const Groups& /*groups*/, Logger& /*log*/) const {
    return false;
  }

  // Training.
  virtual bool draws_pictures() const { return false; }  // instead of texts
  virtual std::vector<UserError> check_samples(const Resolved& /*run*/) const { return {}; }
  //   is_shown  this rank has the sinks
  virtual std::unique_ptr<RunSamples> make_samples(const Resolved& run, at::Device device, bool is_shown,
                                                   Logger& log) const = 0;
  virtual std::unique_ptr<References> make_references(const Resolved& /*run*/, const RunModel& /*model*/,
                                                      Logger& /*log*/) const {
    return nullptr;
  }
  virtual void describe(const Resolved& /*run*/, StepRecord& /*record*/) const {}

  // The start-up report: "2048 tokens"; "hidden 64, …"; further rows of topic and text.
  virtual std::string sample_text(const Resolved& run) const = 0;
  virtual std::string shape_text(const Resolved& run, const ModelConfig& model) const = 0;
  virtual std::vector<std::pair<std::string, std::string>> report_rows(const Resolved& /*run*/) const { return {}; }

  // Checks: a model and a sample at toy width (verify/toy_config.h), on ranks with this layout.
  //   sources  for each toy layer, the original it represents
  virtual void shrink_model(const ParallelOptions& ranks, const ModelConfig& asked, const std::vector<int64_t>& sources,
                            ModelConfig& toy) const = 0;
  virtual void shrink_sample(const Config& asked, Config& toy) const = 0;
  // True if the objective is defined over all ranks' samples together.
  virtual bool has_objective_of_sets() const { return false; }
  // A small input of varied values, without a loss.
  virtual ModelInput some_input(const ModelConfig& config) const = 0;
  // Errors of an explicit input; then the input, with has_targets including the loss's weight and targets.
  virtual bool takes_given_targets() const { return false; }
  virtual std::vector<UserError> check_given(const GivenInput& given) const = 0;
  virtual ModelInput make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const = 0;
};

using Kinds = std::span<const Kind* const>;
const Kind& kind_of(Kinds kinds, ModelType type);

}  // namespace megalith
