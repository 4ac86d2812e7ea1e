// What a checkpoint is made of, as the trainer hands it over: tensors with their Placements, and the numbers of the
// run.
//
// Random numbers need no state: they are keyed by seed, name and position.
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

// The keys with a meaning here. "model" is the weights as the model holds them, "master" the optimizer's wider copies;
// an optimizer names its other states as it likes ("exp_avg", "exp_avg_sq").
inline constexpr std::string_view kModelKey = "model";
inline constexpr std::string_view kMasterKey = "master";

struct CheckpointTensor {
  std::string key;                       // letters, digits, '_'
  const Placement* placement = nullptr;  // outlives the state
  at::Tensor local;                      // of placement->local_shape, without autograd; with a range, (end - begin)
  std::optional<FlatRange> range = std::nullopt;
  // Axes along which other ranks hold this very tensor (or this very range of it); one of them writes it.
  AxisSet replica_axes = {};
  // Read only from a checkpoint that has it in this shape: it can begin afresh.
  bool is_optional = false;
  // Belongs to a part of the model that is not built here: files may have it, and it is not read.
  bool is_passed_over = false;
  // Its values are packed: `local` has no memory, and what is read for it is handed over here.
  Parameter* packed = nullptr;
  // What files hold, where that is not `local` as it is; its parts are shaped as `local`.
  std::optional<StoredForm> form = std::nullopt;
};

// A parameter's values, under the key "model".
CheckpointTensor model_tensor(const Parameter& parameter);
std::vector<CheckpointTensor> model_tensors(const std::vector<Parameter*>& parameters);
// What this rank holds of all parameters.
std::vector<CheckpointTensor> model_tensors(const DataParallel& data);

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t optimizer_step = 0;  // differs from iteration when iterations were skipped
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
