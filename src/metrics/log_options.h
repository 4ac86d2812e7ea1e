// What a run tells of itself, and where.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith {

class OptionVisitor;

struct LogOptions {
  int64_t log_interval = 1;
  bool log_throughput = true;
  int64_t log_avg_skip_iterations = 2;
  int64_t log_avg_reset_interval = 10;
  std::optional<std::string> metrics_file;
  std::optional<std::string> loss_plot_file;

  void visit(OptionVisitor& visitor);
};

}  // namespace megalith
