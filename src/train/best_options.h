// Options of what a run does with its evaluations: the checkpoints it keeps, and its early end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Names of Hugging Face's Trainer where it has them.
struct BestOptions {
  std::optional<int64_t> keep_best;
  std::optional<std::string> metric_for_best_model;
  std::optional<bool> greater_is_better;
  bool load_best_model_at_end = false;
  std::optional<int64_t> early_stopping_patience;
  double early_stopping_threshold = 0;

  void visit(OptionVisitor& v);
  bool is_on() const { return keep_best || load_best_model_at_end || early_stopping_patience; }
  // Best checkpoints that are never deleted.
  int64_t num_kept() const { return keep_best.value_or(load_best_model_at_end ? 1 : 0); }
};

// Empty if no rule between options is broken.
//   saves, evaluates  the run has a folder for checkpoints; evaluations
std::vector<UserError> check_best_options(const BestOptions& options, bool saves, bool evaluates);

}  // namespace megalith
