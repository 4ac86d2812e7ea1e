// Reads a training log, of Megatron-LM and its kind or of torchtitan, by the patterns of cvs_patterns.h, or the same
// from a metrics_file of ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// A log line: one iteration, or several if not every one is logged.
struct CvsStep {
  int64_t before = 0, iteration = 0;  // covers the iterations after `before`
  std::optional<double> loss, grad_norm, elapsed_ms, tflops, causal_tflops, tokens_per_s, memory_fraction;
  std::optional<int64_t> batch_size;
  int64_t num_skipped = 0, num_nan = 0;

  int64_t num_iterations() const { return iteration - before; }
};

struct CvsPhrase {
  int64_t line = 0;  // from 1
  std::string phrase, text;
};

// The mean of the values that CVS's sweeps find in the whole log, without the first.
struct CvsMean {
  double first = 0, sum = 0;
  int64_t count = 0;

  void add(double value);
  double value() const { return count > 1 ? (sum - first) / static_cast<double>(count - 1) : sum; }
};

struct CvsLog {
  std::string file;
  bool is_metrics_file = false;
  std::vector<CvsStep> steps;  // ascending; iterations repeated by a restart count as last done
  int64_t train_iters = 0;     // as the lines say
  std::vector<CvsPhrase> failures, out_of_memory;
  std::optional<int64_t> world_size;
  std::map<std::string, std::string> arguments;  // as listed by Megatron-LM
  std::string tail;                              // the last lines, for CVS's legacy tests
  bool ends_in_line = false;                     // no final line break
  std::map<std::string, double> summary;         // the last value of a script's summary in the last lines, by measure
  std::map<std::string, CvsMean> whole;

  int64_t last_iteration() const { return steps.empty() ? 0 : steps.back().iteration; }
  std::optional<int64_t> argument(const std::string& name) const;  // if a whole number
};

CvsLog parse_cvs_log(std::string_view text, const std::string& file);

// UserError if the file cannot be read or has nothing in it.
CvsLog read_cvs_log(const std::filesystem::path& file);
CvsLog read_cvs_metrics(const std::filesystem::path& metrics_file);

// UserError if the log lacks its beginning or a part of its middle.
void check_log_is_whole(const CvsLog& log);

// Every match of CVS's legacy patterns in the last lines, by key.
std::map<std::string, std::vector<double>> cvs_tail_values(const CvsLog& log);
bool is_complete_for_cvs(const CvsLog& log);

}  // namespace megalith
