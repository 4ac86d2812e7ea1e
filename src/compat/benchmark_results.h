// What a benchmark measured: figures from its log, as AMD's scripts take them, and the file perf_MODEL.csv.
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

// In the current folder, for FLUX: a line of names and one of means, which AMD's script reads.
inline constexpr const char* kRunsSummaryFile = "runs_summary.csv";

struct BenchmarkFigures {
  // Names of AMD's and values of a GPU, in the order of the file of results.
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::string> lines = {};  // that AMD's script prints of them, and reads
  std::string note = {};                // how they were taken, where AMD's own way was not open
  std::string summary = {};             // of kRunsSummaryFile: FLUX's means
};

// UserError when the log has no line of the backend's.
//   torchtitan  the mean of the lines 30 to 39, counted from 0, of `tps:` and `tflops:`
//   megatron    the last `tokens/GPU/s:` and `throughput per GPU:`, which the summary has
//   primus      the mean of the same ten iteration lines
//   torchtune   of the later half of the steps the most memory (GiB) and the mean rate of tokens in the loss
//   flux        the means of `fps_gpu:` and `tflops/s:` over all lines but the first ten, or of the later half where
//               there are fewer than 20; the summary has those of `fps:`, `step_time_total:` and `step_loss:` too
// A log of fewer than 40 lines of torchtitan's or Primus's gives the mean of its last ten, or of its later half where
// it has fewer than 20.
BenchmarkFigures read_benchmark_figures(BenchmarkBackend backend, const std::string& log);

// Those of fine-tuning with Hugging Face's libraries beside them: samples a second of all GPUs, each of which is a
// whole sequence.
void add_sample_rate(BenchmarkFigures& figures, const Resolved& resolved);

struct ResultsContext {
  std::string device, build_commit;
};

// The file's text: AMD's columns, and after them the commit that the program was built of.
// earlier  the file's text until now: its rows of other modes stay, those of this one are replaced
std::string benchmark_csv(const BenchmarkRun& run, const BenchmarkFigures& figures, const Resolved& resolved,
                          const ResultsContext& context, std::string_view earlier = {});

// UserError when the folder of the results is not there or cannot be written, or the file has something else.
void check_results_folder(const BenchmarkRun& run);

}  // namespace megalith
