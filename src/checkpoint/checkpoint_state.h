// Contents of a checkpoint: tensors with Placements, and the run's counters. Random numbers need no state: their keys
// are seed, name and position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/configuration.h"
#include "checkpoint/pieces.h"
#include "nn/parameter.h"
#include "optim/stored_form.h"
#include "parallel/data_parallel.h"

namespace megalith {

// The model's weights and the optimizer's wider copies. Optimizers name other states freely ("exp_avg", "exp_avg_sq").
inline constexpr std::string_view kModelKey = "model";
inline constexpr std::string_view kMasterKey = "master";

struct CheckpointTensor {
  std::string key;                       // letters, digits, '_'
  const Placement* placement = nullptr;  // outlives the state
  at::Tensor local;                      // placement->local_shape, without autograd; with a range, (end - begin)
  std::optional<FlatRange> range = std::nullopt;
  // Axes whose other ranks hold the same tensor (or range); one of them writes.
  AxisSet replica_axes = {};
  // Starts afresh unless the checkpoint has it in this shape.
  bool is_optional = false;
  // Not built here: ignored in files.
  bool is_passed_over = false;
  // `local` has no memory; values read are handed over here.
  Parameter* packed = nullptr;
  // If not `local` itself; its parts are shaped like `local`.
  std::optional<StoredForm> form = std::nullopt;
};

// Under the key "model".
CheckpointTensor model_tensor(const Parameter& parameter);
std::vector<CheckpointTensor> model_tensors(const std::vector<Parameter*>& parameters);
// This rank's share.
std::vector<CheckpointTensor> model_tensors(const DataParallel& data);

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t optimizer_step = 0;  // counts no skipped iterations
  int64_t skipped_iterations = 0;
  int64_t seed = 0;
  std::map<std::string, double> numbers;  // of schedules, loss scaler, totals

  bool operator==(const TrainState&) const = default;
};

struct CheckpointState {
  std::vector<CheckpointTensor> tensors;
  TrainState train;             // equal on all ranks
  Configuration architecture;   // architecture_of(model)
  Configuration configuration;  // configuration_of(all options)
};

}  // namespace megalith
