// Checkpoint options, in Megatron-LM's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/finite_weights.h"
#include "core/error.h"

namespace megalith {

class OptionVisitor;

struct CheckpointOptions {
  std::optional<std::string> save;
  std::optional<int64_t> save_interval;
  double save_interval_in_mins = 30;
  std::optional<int64_t> keep_last;
  std::optional<int64_t> save_retain_interval;
  bool no_save_optim = false;
  bool async_save = false;
  bool disable_last_saving = false;
  bool auto_continue_train = false;

  std::optional<std::string> load;
  std::optional<std::string> pretrained_checkpoint;
  std::optional<std::string> bert_load;  // a biencoder's encoders'
  std::optional<int64_t> ckpt_step;
  bool no_load_optim = false;
  bool finetune = false;
  bool exit_on_missing_checkpoint = false;

  std::optional<std::string> load_hf;
  std::optional<std::string> save_hf;
  bool export_hf = false;
  std::optional<std::string> adapter, save_adapter;
  bool overwrite = false;
  bool allow_nonfinite_weights = false;

  void visit(OptionVisitor& v);

  // For regular checkpoints; the trainer decides on the final one.
  bool is_save_due(int64_t iteration) const { return save && save_interval && iteration % *save_interval == 0; }
  SaveSettings save_settings() const;
  NonfiniteWeights nonfinite_weights() const {
    return allow_nonfinite_weights ? NonfiniteWeights::kAllowed : NonfiniteWeights::kRefused;
  }
};

// One error per violation.
std::vector<UserError> check_checkpoint_options(const CheckpointOptions& options);

}  // namespace megalith
