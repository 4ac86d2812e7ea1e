#include "compat/benchmark_results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <regex>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

// AMD's scripts leave out the warm-up and what comes after.
constexpr size_t kFirstMatch = 30, kPastLastMatch = 40;
constexpr size_t kFewMatches = 10;
constexpr size_t kLongestResultLine = 4096;  // std::regex recurses once for each character

struct Patterns {
  const char *tokens, *tflops;
};

Patterns patterns_of(BenchmarkBackend backend) {
  switch (backend) {
    case BenchmarkBackend::kMegatron:
      return {R"(tokens/GPU/s:\s+([0-9.]+))", R"(throughput per GPU(?:\s*\([^)]*\))?\s*:\s+([0-9.]+))"};
    case BenchmarkBackend::kPrimus:
      return {R"(tokens/s/GPU\):\s*(\d+\.?\d*)/)", R"(TFLOP/s/GPU\):\s*(\d+\.?\d*)/)"};
    case BenchmarkBackend::kTorchtitan:
    case BenchmarkBackend::kTorchtune:
    case BenchmarkBackend::kFlux:
      break;
  }
  return {R"(tps:\s*([\d,]+))", R"(tflops:\s*([\d,.]+))"};
}

// The first match of each line; commas between thousands are left out.
std::vector<double> matches_in(const std::string& log, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<double> values;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, std::min(end - begin, kLongestResultLine));
    begin = end + 1;
    std::smatch found;
    if (!std::regex_search(line, found, regex)) continue;
    std::string digits = found[1];
    std::erase(digits, ',');
    values.push_back(std::strtod(digits.c_str(), nullptr));
  }
  return values;
}

double mean_of(const std::vector<double>& values, size_t begin, size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
         static_cast<double>(end - begin);
}

// Counts get one decimal; small figures of toys get four significant digits.
std::string figure_text(double value) {
  return value >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.4g}", value);
}

// As AMD's two scripts compute it: the newer takes the second half of the steps, the older all but the first. Its rate
// counts all tokens of a step, as the iteration lines do, including those not in the loss.
BenchmarkFigures finetuning_figures(const std::string& log) {
  const std::vector<double> memory = matches_in(log, R"(peak_memory_alloc:([0-9]+\.[0-9]+))");
  const std::vector<double> learned = matches_in(log, R"(tokens_per_second_per_gpu:([0-9]+\.[0-9]+))");
  if (memory.empty() || learned.empty()) {
    throw UserError("the log has no line with the benchmark's figures", "the run has not come to its first step");
  }
  const std::vector<double> all = matches_in(log, patterns_of(BenchmarkBackend::kPrimus).tokens);
  const auto behind = [](const std::vector<double>& values, size_t first) {
    return mean_of(values, std::min(first, values.size() - 1), values.size());
  };
  const double most = *std::max_element(memory.begin() + static_cast<std::ptrdiff_t>(memory.size() / 2), memory.end());
  const double rate = behind(learned, learned.size() / 2);
  BenchmarkFigures figures{.metrics = {{"max_memory_alloc", most}, {"avg_tokens_per_s_per_gpu", rate}}};
  figures.lines = {fmt::format("Max memory alloc (last half): {:.6f}", most),
                   fmt::format("Average tokens/s/gpu (last half): {:.4f}", rate),
                   fmt::format("Max memory alloc: {:.6f}", *std::max_element(memory.begin(), memory.end())),
                   fmt::format("Average tokens/s/gpu: {:.4f}", behind(all.empty() ? learned : all, 1)),
                   fmt::format("Unmasked tokens/s/gpu: {:.4f}", behind(learned, 1))};
  return figures;
}

// Leaves out the warm-up: ten steps, or half of a short run.
BenchmarkFigures picture_figures(const std::string& log) {
  const auto mean = [&](const char* pattern) {
    const std::vector<double> values = matches_in(log, pattern);
    if (values.empty()) {
      throw UserError("the log has no line with the benchmark's figures", "the run has not come to its first step");
    }
    return mean_of(values, std::min(kFewMatches, values.size() / 2), values.size());
  };
  const double fps = mean(R"(fps:\s*([0-9.]+))"), of_gpu = mean(R"(fps_gpu:\s*([0-9.]+))");
  const double tflops = mean(R"(tflops/s:\s*([0-9.]+))"), time = mean(R"(step_time_total:\s*([0-9.]+))");
  BenchmarkFigures figures{.metrics = {{"FPS_per_GPU", of_gpu}, {"TFLOPS_per_GPU", tflops}}};
  figures.summary = fmt::format(
      "avg_fps,avg_fps_gpu,avg_tflops,avg_step_time_total,avg_loss\n"
      "{:.6g},{:.6g},{:.6g},{:.6g},{:.6g}\n",
      fps, of_gpu, tflops, time, mean(R"(step_loss:\s*([0-9.]+))"));
  return figures;
}

constexpr std::string_view kFirstColumns = "model,performance,metric";

// A file of results: cells by the name of their column.
struct Results {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> rows;
};

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    cells.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

Results read_results(std::string_view text) {
  Results results;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string> cells = cells_of(trim(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (results.names.empty()) {
      results.names = cells;
      continue;
    }
    std::map<std::string, std::string> row;
    for (size_t i = 0; i < std::min(cells.size(), results.names.size()); ++i) row[results.names[i]] = cells[i];
    if (cells.size() == results.names.size()) results.rows.push_back(std::move(row));
  }
  return results;
}

}  // namespace

BenchmarkFigures read_benchmark_figures(BenchmarkBackend backend, const std::string& log) {
  if (backend == BenchmarkBackend::kTorchtune) return finetuning_figures(log);
  if (backend == BenchmarkBackend::kFlux) return picture_figures(log);
  const Patterns patterns = patterns_of(backend);
  const std::vector<double> tokens = matches_in(log, patterns.tokens), tflops = matches_in(log, patterns.tflops);
  if (tokens.empty() || tflops.empty()) {
    throw UserError("the log has no line with the benchmark's figures", "the run has not come to its first step");
  }
  BenchmarkFigures figures;
  const auto set = [&](double tokens_per_s, double flops) {
    figures.metrics = {{"tok_per_s_per_gpu", tokens_per_s}, {"TFLOPS_per_gpu", flops}};
  };
  if (backend == BenchmarkBackend::kMegatron) {
    set(tokens.back(), tflops.back());
    return figures;
  }
  const size_t count = std::min(tokens.size(), tflops.size());
  size_t begin = kFirstMatch, end = kPastLastMatch;
  if (count < kPastLastMatch) {
    end = count;
    begin = count - std::min(kFewMatches, (count + 1) / 2);
    figures.note = fmt::format(
        "the log has {} lines of steps, and the figures are taken from lines 30 to 39: here they "
        "are the mean of the last {}",
        count, end - begin);
  }
  set(mean_of(tokens, begin, end), mean_of(tflops, begin, end));
  return figures;
}

void add_sample_rate(BenchmarkFigures& figures, const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const double tokens_per_s = figures.metrics.back().second;
  const double samples_per_s = tokens_per_s * static_cast<double>(d.world_size) / static_cast<double>(d.seq_length);
  figures.metrics.insert(figures.metrics.begin(), {"train_samples_per_s", samples_per_s});
  figures.lines.push_back(fmt::format("{{'train_samples_per_second': {:.6f}}}", samples_per_s));
}

std::string benchmark_csv(const BenchmarkRun& run, const BenchmarkFigures& figures, const Resolved& resolved,
                          const ResultsContext& context, std::string_view earlier) {
  const Derived& derived = resolved.derived;
  std::vector<std::string> names = {"model", "performance", "metric"};
  if (run.backend != BenchmarkBackend::kMegatron) names.emplace_back("mode");
  const bool is_primus = run.backend == BenchmarkBackend::kPrimus;
  if (is_primus) {
    names.insert(names.end(), {"precision", "batch_size", "global_batch_size", "seq_len", "device", "num_gpus"});
  }
  names.emplace_back("build_commit");
  Results results = read_results(earlier);
  // Rows from another back end's file keep their other columns.
  for (const std::string& name : results.names) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.insert(names.end() - 1, name);
  }
  const std::string mode = run.backend != BenchmarkBackend::kMegatron ? run.mode : "";
  std::erase_if(results.rows, [&](auto& row) { return row["mode"] == mode; });
  for (const auto& [metric, value] : figures.metrics) {
    std::map<std::string, std::string> row = {{"model", run.model},
                                              {"performance", figure_text(value)},
                                              {"metric", metric},
                                              {"mode", mode},
                                              {"build_commit", context.build_commit}};
    if (is_primus) {
      row.insert({{"precision", resolved.config.fp8.fp4_format   ? "FP4"
                                 : resolved.config.fp8.fp8_format ? "FP8"
                                                                  : "BF16"},
                  {"batch_size", std::to_string(derived.micro_batch_size)},
                  {"global_batch_size", std::to_string(derived.global_batch_size)},
                  {"seq_len", std::to_string(derived.seq_length)},
                  {"device", context.device},
                  {"num_gpus", std::to_string(derived.world_size)}});
    }
    results.rows.push_back(std::move(row));
  }
  std::string text = fmt::format("{}\n", fmt::join(names, ","));
  for (auto& row : results.rows) {
    std::vector<std::string> cells;
    for (const std::string& name : names) cells.push_back(row[name]);
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

void check_results_folder(const BenchmarkRun& run) {
  std::filesystem::path folder = std::filesystem::path(run.results).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  if (std::filesystem::exists(run.results, error) && !read_file(run.results).starts_with(kFirstColumns)) {
    throw UserError(fmt::format("the results go to {}, which is another file: it does not begin with {}", run.results,
                                kFirstColumns),
                    "move it away");
  }
  if (::access(folder.c_str(), W_OK) == 0) return;
  throw UserError(
      fmt::format("the results go to {}, and the folder {} cannot be written", run.results, folder.string()),
      "start the script in a folder below one of yours");
}

}  // namespace megalith
