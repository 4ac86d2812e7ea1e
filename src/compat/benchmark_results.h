// Results of a benchmark: figures from its log, as AMD's scripts compute them, and the file perf_MODEL.csv.
//
// Source: ROCm/MAD scripts/pytorch_train/pytorch_benchmark_report.sh, scripts/megatron-lm, scripts/primus.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compat/benchmark.h"
#include "train/config.h"

namespace megalith {

// FLUX's summary in the current folder, read by AMD's script: a line of names and a line of means.
inline constexpr const char* kRunsSummaryFile = "runs_summary.csv";

struct BenchmarkFigures {
  // AMD's names and per-GPU values, in the order of the results file.
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::string> lines = {};  // printed and read by AMD's script
  std::string note = {};                // how they were computed, where AMD's own way was not possible
  std::string summary = {};             // of kRunsSummaryFile: FLUX's means
};

// UserError if the log has no line of the backend's.
//   torchtitan  mean of lines 30 to 39, counted from 0, of `tps:` and `tflops:`
//   megatron    last `tokens/GPU/s:` and `throughput per GPU:`, from the summary
//   primus      mean of the same ten iteration lines
//   torchtune   peak memory (GiB) and mean rate of tokens in the loss over the second half of the steps
//   flux        means of `fps_gpu:` and `tflops/s:` over all lines but the first ten, or the second half of fewer than
//               20; the summary also has those of `fps:`, `step_time_total:` and `step_loss:`
// With fewer than 40 lines, torchtitan and Primus use the last ten, or the second half of fewer than 20.
BenchmarkFigures read_benchmark_figures(BenchmarkBackend backend, const std::string& log);

// Adds the figure of fine-tuning with Hugging Face's libraries: samples per second over all GPUs, one per sequence.
void add_sample_rate(BenchmarkFigures& figures, const Resolved& resolved);

struct ResultsContext {
  std::string device, build_commit;
};

// Text of the file: AMD's columns, then the commit the program was built from.
// earlier  the file's current text: rows of other modes stay, those of this one are replaced
std::string benchmark_csv(const BenchmarkRun& run, const BenchmarkFigures& figures, const Resolved& resolved,
                          const ResultsContext& context, std::string_view earlier = {});

// UserError if the folder of the results is missing or not writable, or the file holds something else.
void check_results_folder(const BenchmarkRun& run);

}  // namespace megalith
