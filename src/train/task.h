// A run's task: data, random draws of each row, losses and their divisors, model inputs, evaluation measures. The
// trainer knows no more than this interface. docs/add_task.md tells how to add one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "models/model.h"
#include "train/task_options.h"

namespace megalith {

// Sums of weight * loss and of weights, of one loss.
struct LossSum {
  std::string name;
  double sum = 0, weight = 0;
  // 0 without weight.
  double mean() const { return sum / (weight > 0 ? weight : 1.0); }
};

// Output that a model of the task shows during training.
enum class SampleKind {
  kNone,
  kText,
  kPicture,
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string_view name() const = 0;  // the word of --task

  // Errors for options that cannot be combined; empty if none.
  virtual std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const = 0;

  // The data sets the options name. Batches include what draw() adds.
  virtual DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const = 0;

  // Adds or applies what is random in whole rows: masks, noise, timesteps. Depends only on the seed and each row's
  // sample_index (core/philox.h), so draws do not depend on layout or resuming. Called on the CPU, from several
  // threads.
  virtual void draw(Batch& rows) const = 0;

  // Objective terms of the model's head, as logged, the main one first. The model may add its own
  // (Model::added_losses).
  virtual std::vector<std::string> loss_names() const = 0;
  // Each loss's divisor, in that order: this batch's or part's share of the global batch's. Known before the forward
  // pass, where fused losses compute gradients.
  virtual std::vector<double> count_weights(const Batch& part) const = 0;

  // A batch, or under context parallelism this rank's part, as input for a chunk of these units: copies only what they
  // read to the device.
  virtual ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const = 0;

  // Evaluation: what the last stage computes, and measures of this rank's part: (losses, 2) float64, sum and weight of
  // each of evaluated_names().
  virtual HeadOutput evaluated_output() const = 0;
  virtual std::vector<std::string> evaluated_names() const = 0;
  virtual at::Tensor evaluate(const Batch& part, const ModelOutput& output) const = 0;
  // The measures to show, of these sums over all data: not all are means, an F1 is of counts.
  virtual std::vector<LossSum> concluded(std::vector<LossSum> sums) const { return sums; }
  // A row's logits as JSON, for tasks that evaluate whole rows' kLogits; empty: no predictions.
  virtual std::string prediction(std::span<const double> /*logits*/) const { return {}; }

  virtual SampleKind sample_kind() const { return SampleKind::kNone; }

  // Terms without an objective, such as accuracies, that the head measures on training batches; logged after the
  // losses.
  virtual std::vector<std::string> measured_names() const { return {}; }
};

// Rows for evaluate(): the head's terms of these names.
at::Tensor sums_of_terms(const ModelOutput& output, const std::vector<std::string>& names);

}  // namespace megalith
