// A metrics_file read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct StepLine {
  int64_t iteration = 0, train_iters = 0;
  double loss = 0;  // the main loss; NaN for null
  double learning_rate = 0, elapsed_ms = 0, tokens_per_s_per_device = 0, tflops_per_device = 0;
  std::optional<double> grad_norm;
  double causal_tflops_per_device = 0;
  std::optional<double> memory_used_fraction;
  std::optional<int64_t> global_batch_size;
  int64_t tokens = 0, memory_peak_bytes = 0;
  bool is_skipped = false, is_nan = false;
};

struct EvaluationLine {
  int64_t iteration = 0;
  std::string set;  // "validation", "test"
  double loss = 0;
};

struct RunHistory {
  std::string loss_name;  // "lm_loss"
  // Ascending; of a repeated step, the later line counts.
  std::vector<StepLine> steps;
  std::vector<EvaluationLine> evaluations;
  std::vector<std::string> run_ids;   // in order of appearance; absent in old files
  std::string first_time, last_time;  // "" in old files

  int64_t num_tokens() const;
  // Without each start's slow first two steps; 0 without steps.
  double mean_tokens_per_s_per_device() const;
  double mean_elapsed_ms() const;
  std::vector<std::string> evaluated_sets() const;  // in order of appearance
  std::string first_validation_set() const;         // by which runs are compared; "" if there was none
  std::optional<EvaluationLine> last_evaluation(const std::string& set) const;
  std::optional<EvaluationLine> best_evaluation(const std::string& set) const;

  std::vector<bool> is_warming_up;  // among a start's first two
};

// UserError: unreadable file or invalid line. Ignores an unfinished last line.
RunHistory read_run_history(const std::filesystem::path& metrics_file);

}  // namespace megalith
