// A checkpoint's content as the trainer provides it: tensors with Placements, and the run's counters. Random numbers
// need no state: they are keyed by seed, name and position.
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

// Keys with a meaning here: the model's weights and the optimizer's wider copies. An optimizer names its other states
// freely ("exp_avg", "exp_avg_sq").
inline constexpr std::string_view kModelKey = "model";
inline constexpr std::string_view kMasterKey = "master";

struct CheckpointTensor {
  std::string key;                       // letters, digits, '_'
  const Placement* placement = nullptr;  // outlives the state
  at::Tensor local;                      // of placement->local_shape, without autograd; with a range, (end - begin)
  std::optional<FlatRange> range = std::nullopt;
  // Axes along which other ranks hold the same tensor (or range); one of them writes it.
  AxisSet replica_axes = {};
  // Read only if the checkpoint has it in this shape; otherwise it starts afresh.
  bool is_optional = false;
  // Part of the model that is not built here: files may have it, and it is ignored.
  bool is_passed_over = false;
  // Packed: `local` has no memory, and values read are handed over here.
  Parameter* packed = nullptr;
  // The stored form, if not `local` itself; its parts are shaped like `local`.
  std::optional<StoredForm> form = std::nullopt;
};

// A parameter's values under the key "model".
CheckpointTensor model_tensor(const Parameter& parameter);
std::vector<CheckpointTensor> model_tensors(const std::vector<Parameter*>& parameters);
// This rank's share of all parameters.
std::vector<CheckpointTensor> model_tensors(const DataParallel& data);

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t optimizer_step = 0;  // less than iteration if iterations were skipped
  int64_t skipped_iterations = 0;
  int64_t seed = 0;
  std::map<std::string, double> numbers;  // of the schedules, the loss scaler, the run's totals

  bool operator==(const TrainState&) const = default;
};

struct CheckpointState {
  std::vector<CheckpointTensor> tensors;
  TrainState train;             // equal on all ranks
  Configuration architecture;   // architecture_of(model)
  Configuration configuration;  // configuration_of(all options)
};

}  // namespace megalith
