// Logging options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

class OptionVisitor;
class UserError;

// On standard output. kAuto is kCompact.
enum class LogFormat { kAuto, kCompact, kMegatron, kJson };

struct LogOptions {
  LogFormat log_format = LogFormat::kAuto;
  std::optional<std::string> log_style;
  bool quiet = false, verbose = false, explain_options = false, suggest_layout = true;
  int64_t log_interval = 1;
  bool log_throughput = true;
  int64_t log_avg_skip_iterations = 2;
  int64_t log_avg_reset_interval = 10;
  bool log_params_norm = false;
  std::optional<std::string> output_dir, record_file;
  bool wait_for_folder = false;
  std::optional<std::string> log_file;
  std::optional<std::string> metrics_file;
  std::optional<std::string> loss_plot_file;
  std::optional<std::string> page_file;
  std::optional<std::string> mlperf_log_file, mlperf_benchmark;
  std::optional<double> mlperf_target;

  std::optional<std::string> tensorboard_dir;
  bool disable_tensorboard = false;
  int64_t tensorboard_log_interval = 1;
  bool log_timers_to_tensorboard = true;
  bool log_memory_to_tensorboard = true;
  bool log_loss_scale_to_tensorboard = true;
  bool log_world_size_to_tensorboard = false;
  bool log_validation_ppl_to_tensorboard = false;

  void visit(OptionVisitor& visitor);

  LogFormat console_format() const { return log_format == LogFormat::kAuto ? LogFormat::kCompact : log_format; }
  bool writes_tensorboard() const { return tensorboard_dir && !disable_tensorboard; }
  // True if this iteration is logged anywhere, with the parameters' norm. Equal on all ranks.
  bool is_params_norm_due(int64_t iteration, int64_t train_iters) const;
};

// One error per violation.
std::vector<UserError> check_log_options(const LogOptions& options);

}  // namespace megalith
