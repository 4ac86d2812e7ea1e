// One form of foreign checkpoints to write, as foreign_export.cc lists them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/convert.h"
#include "foreign/canonical_model.h"
#include "foreign/dcp_writer.h"
#include "foreign/foreign_tensor.h"
#include "optim/learning_rate.h"
#include "optim/optimizer_options.h"

namespace megalith {

struct ExportedTensor {
  std::vector<std::string> names;
  ForeignLayout layout;
  std::vector<std::string> tied = {};  // more names of the weight, which the optimizer does not know
  bool has_state = false;              // set by save_foreign()
};

// Kept by trainers beside the optimizer's state. Defaults, if the checkpoint does not record them.
struct RunSettings {
  LearningRateOptions learning_rate;
  OptimizerOptions optimizer;
  int64_t batch = 1, train_samples = 1;  // of an iteration, of the run
  int64_t seq_length = 0;
  int64_t schedule_samples = 0;  // position of the curves
  double next_lr = 0, next_weight_decay = 0;
  bool are_recorded = false;

  void visit(OptionVisitor& v);
};

struct ForeignContents {
  const StoredModel& model;
  const RunSettings& settings;
  const std::vector<ExportedTensor>& tensors;
  bool with_optimizer;
};

struct ForeignTarget {
  std::string_view word, name;
  std::string (*folder_name)(int64_t iteration);  // "": the folder itself that is named
  bool keeps_masters;                             // beside the weights, or instead of them
  // Of a key of ours.
  std::vector<std::string> (*state_names)(std::string_view key, std::string_view parameter);
  std::vector<ExportedTensor> (*tensors)(const CanonicalModel& model);
  // All but parameters and states.
  void (*add_rest)(const ForeignContents& contents, const std::filesystem::path& folder, DcpWriter& writer);
  // Beside the folder, once it is there.
  void (*finish)(const ForeignContents& contents, const std::filesystem::path& root);
};

extern const ForeignTarget kToDcp, kToFusedDcp, kToTorchtitan, kToTorchDist;

}  // namespace megalith
