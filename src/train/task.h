// What a run trains a model to do: which data it reads, what it draws at random for each row, which losses it has and
// what each is divided by, how a batch becomes a model's input, and what an evaluation measures.
//
// The trainer knows no more of a task than this interface. docs/add_task.md says how one is added.
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

// The sum of weight * loss, and of the weights, of one loss.
struct LossSum {
  std::string name;
  double sum = 0, weight = 0;
  // Without any weight there is no loss: 0.
  double mean() const { return sum / (weight > 0 ? weight : 1.0); }
};

// What a model of the task shows of itself during training.
enum class SampleKind {
  kNone,
  kText,     // it continues a prompt
  kPicture,  // it draws one
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string_view name() const = 0;  // the word of --task

  // What cannot be trained together; empty when all can.
  virtual std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const = 0;

  // The data sets that the options name. Their batches have what draw() adds.
  virtual DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const = 0;

  // Adds to whole rows, or changes in them, what is random: masks, noise, timesteps. A function of the seed and of each
  // row's sample_index only (core/philox.h), so every layout draws the same, and a resumed run what it would have
  // drawn. Called on the CPU, from several threads.
  virtual void draw(Batch& rows) const = 0;

  // The terms of the objective that the model's head computes, as they are logged, the main one first. The model may
  // add terms of its own (Model::added_losses).
  virtual std::vector<std::string> loss_names() const = 0;
  // What each loss is divided by, in that order: what this batch, or this part of one, adds to the sum over the global
  // batch. It is known before the forward pass, because fused losses compute gradients there.
  virtual std::vector<double> count_weights(const Batch& part) const = 0;

  // A batch, or under context parallelism this rank's part of it, as a chunk of the model takes it, which has these
  // units: only what they read is copied to its device.
  virtual ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const = 0;

  // What the last stage computes in an evaluation, and what is measured of it, with numbers of this rank's part only:
  // (losses, 2) float64, a row of sum and weight for each of evaluated_names().
  virtual HeadOutput evaluated_output() const = 0;
  virtual std::vector<std::string> evaluated_names() const = 0;
  virtual at::Tensor evaluate(const Batch& part, const ModelOutput& output) const = 0;
  // The measures to show, of these sums over all data: not all are means, an F1 is of counts.
  virtual std::vector<LossSum> concluded(std::vector<LossSum> sums) const { return sums; }
  // A row's logits as JSON, for a task that evaluates kLogits of whole rows; empty: it predicts nothing of rows.
  virtual std::string prediction(std::span<const double> /*logits*/) const { return {}; }

  virtual SampleKind sample_kind() const { return SampleKind::kNone; }

  // What the model's head measures of a training batch beside the losses: terms without an objective, logged behind
  // them, as accuracies are.
  virtual std::vector<std::string> measured_names() const { return {}; }
};

// Rows for evaluate(): the terms of these names that the model's head gives.
at::Tensor sums_of_terms(const ModelOutput& output, const std::vector<std::string>& names);

}  // namespace megalith
