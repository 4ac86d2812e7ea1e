// The parts of cvs_judge.h that compare numbers: the loss curve, and means of speed and memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "compat/cvs_judge.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// As in CVS's means: the first two iterations warm up, and the last may be disturbed by what follows.
constexpr int64_t kWarmUpIterations = 2;
constexpr int64_t kFewestForLoss = 8;
// Relative difference up to which an implied and a given threshold agree.
constexpr double kSameShare = 0.05;

// Attention GFLOP per token for keys that a causal mask hides: half of 12 x layers x hidden x sequence.
double hidden_gflop_per_token(const CvsCase& of) {
  const bool is_70b = of.model.find("70b") != std::string::npos, is_8b = of.model.find("_8b") != std::string::npos;
  const double layers = is_70b ? 80 : 32, hidden = is_70b ? 8192 : 4096;
  return is_70b || is_8b ? 6 * layers * hidden * static_cast<double>(of.sequence_length) / 1e9 : 0;
}

std::string number_of(double value) {
  const double size = std::fabs(value);
  return size >= 10 && size < 1e7 ? fmt::format("{:.1f}", value) : fmt::format("{:.4g}", value);
}

using StepValue = std::function<std::optional<double>(const CvsStep&)>;

// Mean over iterations without the first two and the last; nothing if no line is left or has the value.
std::optional<double> mean_of(const std::vector<CvsStep>& steps, const StepValue& value) {
  double sum = 0, count = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    if (steps[i].before < kWarmUpIterations) continue;
    const auto one = value(steps[i]);
    if (!one || !std::isfinite(*one)) continue;
    sum += *one * static_cast<double>(steps[i].num_iterations());
    count += static_cast<double>(steps[i].num_iterations());
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

double slope_of(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean_x = mean(x, 0, x.size()), mean_y = mean(y, 0, y.size());
  double over = 0, under = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    over += (x[i] - mean_x) * (y[i] - mean_y);
    under += (x[i] - mean_x) * (x[i] - mean_x);
  }
  return under > 0 ? over / under : 0;
}

void judge_finiteness(const std::vector<CvsStep>& steps, CvsFindings& findings) {
  std::vector<std::string> bad;
  for (const CvsStep& step : steps) {
    const bool has_loss = !step.loss || std::isfinite(*step.loss),
               has_norm = !step.grad_norm || std::isfinite(*step.grad_norm);
    if (has_loss && has_norm && step.num_nan == 0) continue;
    bad.push_back(fmt::format("iteration {} ({})", step.iteration,
                              !has_loss   ? "lm loss"
                              : !has_norm ? "grad norm"
                                          : "nan iterations"));
  }
  const std::string shown =
      join({bad.begin(), bad.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(bad.size(), 5))}, ", ");
  findings.push_back(
      {"convergence", "finite", bad.empty() ? FindingLevel::kOk : FindingLevel::kError,
       bad.empty() ? "loss and gradient norm of every iteration"
                   : fmt::format("NaN or Inf in {}{}", shown,
                                 bad.size() > 5 ? fmt::format(" and {} more", bad.size() - 5) : ""),
       bad.empty() ? "" : "no NaN, no Inf",
       bad.empty() ? "" : "look at the iterations before: a higher precision, a lower learning rate, a sound device"});
}

void judge_skipped(const std::vector<CvsStep>& steps, CvsFindings& findings) {
  int64_t total = 0, in_a_row = 0, most = 0;
  for (const CvsStep& step : steps) {
    total += step.num_skipped;
    in_a_row = step.num_skipped == step.num_iterations() && step.num_skipped > 0 ? in_a_row + step.num_skipped
                                                                                 : step.num_skipped;
    most = std::max(most, in_a_row);
  }
  const FindingLevel level = most > 1 ? FindingLevel::kError : total > 0 ? FindingLevel::kWarning : FindingLevel::kOk;
  findings.push_back({"convergence", "skipped iterations", level,
                      most > 1 ? fmt::format("{}, {} of them in a row", total, most) : std::to_string(total),
                      level == FindingLevel::kOk ? "" : "none in a row", ""});
}

void judge_loss(const std::vector<CvsStep>& steps, CvsFindings& findings) {
  std::vector<double> x, y;
  for (const CvsStep& step : steps) {
    if (!step.loss || !std::isfinite(*step.loss) || step.before < kWarmUpIterations) continue;
    x.push_back(static_cast<double>(step.iteration));
    y.push_back(*step.loss);
  }
  if (x.size() < 2) {
    findings.push_back({"convergence", "lm loss", FindingLevel::kError,
                        fmt::format("{} losses behind the warm-up", x.size()), "a loss on each line",
                        "the lines need 'lm loss: X'"});
    return;
  }
  const double slope = slope_of(x, y);
  findings.push_back({"convergence", "lm loss falls", slope < 0 ? FindingLevel::kOk : FindingLevel::kError,
                      fmt::format("slope {:.3e} an iteration", slope), "below 0",
                      slope < 0 ? "" : "the model does not learn: look at learning rate, data and precision"});
  const size_t quarter = std::max<size_t>(1, y.size() / 4);
  const double first = mean(y, 0, quarter), last = mean(y, y.size() - quarter, y.size());
  findings.push_back({"convergence", "last lm loss", last < first ? FindingLevel::kOk : FindingLevel::kError,
                      fmt::format("{:.4f}, the mean of the last {}", last, quarter),
                      fmt::format("below {:.4f}, that of the first", first), ""});
}

struct Measure {
  std::string key, unit;
  bool is_upper = false;  // the bound is the most, not the least
  std::optional<double> value;
  std::string more = {};
};

CvsFinding judge_measure(const CvsCase& of, const Measure& measure, int64_t num_iterations) {
  const CvsBound* bound = of.find_bound(measure.key);
  const std::string unit = measure.unit.empty() ? "" : " " + measure.unit;
  CvsFinding finding{"performance", measure.key, FindingLevel::kOk, "", "", ""};
  if (bound != nullptr) {
    finding.expected = fmt::format("at {} {}{}", measure.is_upper ? "most" : "least", number_of(bound->value), unit);
  }
  if (!measure.value) {
    finding.level = bound != nullptr ? FindingLevel::kError : FindingLevel::kNote;
    finding.found = num_iterations < kWarmUpIterations + 2
                        ? fmt::format("{} iterations are too few for a mean", num_iterations)
                        : "the log does not say";
    if (bound != nullptr) {
      finding.remedy = num_iterations < kWarmUpIterations + 2 ? "train for at least four iterations"
                                                              : "the run needs --log_throughput";
    }
    return finding;
  }
  finding.found = fmt::format("{}{}{}", number_of(*measure.value), unit, measure.more);
  if (bound == nullptr) {
    finding.level = FindingLevel::kNote;
    finding.found += ", not judged: result_dict has no bound";
  } else if (!(measure.is_upper ? *measure.value <= bound->value : *measure.value >= bound->value)) {
    finding.level = FindingLevel::kError;
    finding.remedy = measure.key == "mem_usage"
                         ? "lower micro_batch_size, or set recompute or fsdp to 1"
                         : "megalith doctor looks at the machine, docs/operating.md has what makes runs fast";
  }
  return finding;
}

// Notes bounds that imply another rate than tokens_per_gpu.
void note_contradictions(const CvsCase& of, int64_t num_devices, std::optional<double> gflop_per_token,
                         CvsFindings& findings) {
  const CvsBound* tokens = of.find_bound("tokens_per_gpu");
  if (tokens == nullptr) return;
  const auto add = [&](const CvsBound& other, double implied) {
    if (std::fabs(implied / tokens->value - 1) < kSameShare) return;
    findings.push_back(
        {"performance", "thresholds", FindingLevel::kNote,
         fmt::format("{} {} is {} tokens/s here, and tokens_per_gpu asks for {}: they were not made for one "
                     "run, and the stricter one decides",
                     other.key, number_of(other.value), number_of(implied), number_of(tokens->value)),
         "", ""});
  };
  if (const CvsBound* elapsed = of.find_bound("elapsed_time_per_iteration")) {
    add(*elapsed, static_cast<double>(of.batch_size * of.sequence_length) / (elapsed->value / 1e3) /
                      static_cast<double>(num_devices));
  }
  if (const CvsBound* rate = of.find_bound("throughput_per_gpu"); rate != nullptr && gflop_per_token) {
    add(*rate, rate->value * 1e3 / *gflop_per_token);
  }
}

}  // namespace

CvsFindings judge_convergence(const std::vector<CvsStep>& steps) {
  CvsFindings findings;
  judge_finiteness(steps, findings);
  judge_skipped(steps, findings);
  const int64_t done = steps.empty() ? 0 : steps.back().iteration;
  if (done < kFewestForLoss) {
    findings.push_back(
        {"convergence", "lm loss", FindingLevel::kError, fmt::format("{} iterations: too short to judge", done),
         fmt::format("at least {}", kFewestForLoss), "--set training_iterations=30 and train for as many"});
    return findings;
  }
  judge_loss(steps, findings);
  return findings;
}

CvsFindings judge_performance(const CvsCase& of, const std::vector<CvsStep>& steps, const CvsJudgeOptions& options) {
  const int64_t devices = of.nodes_of_run() * options.devices_per_node;
  const int64_t done = steps.empty() ? 0 : steps.back().iteration;
  const auto elapsed = mean_of(steps, [](const CvsStep& step) { return step.elapsed_ms; });
  const auto tflops = mean_of(steps, [](const CvsStep& step) { return step.tflops; });
  auto causal = mean_of(steps, [](const CvsStep& step) { return step.causal_tflops; });
  auto tokens = mean_of(steps, [](const CvsStep& step) { return step.tokens_per_s; });
  const bool is_computed = !tokens && elapsed && *elapsed > 0;
  if (is_computed) {
    tokens = static_cast<double>(of.batch_size * of.sequence_length) / (*elapsed / 1e3) / static_cast<double>(devices);
  }
  if (const double hidden = hidden_gflop_per_token(of); !causal && tflops && tokens && hidden > 0) {
    causal = *tflops - *tokens * hidden / 1e3;
  }
  Measure throughput{"throughput_per_gpu", "TFLOP/s", false, tflops};
  if (causal && *causal > 0)
    throughput.more = fmt::format(" ({} with attention halved for causality)", number_of(*causal));
  CvsFindings findings;
  findings.push_back(judge_measure(of, throughput, done));
  findings.push_back(judge_measure(
      of, {"tokens_per_gpu", "tokens/s", false, tokens, is_computed ? " (computed from the time)" : ""}, done));
  findings.push_back(judge_measure(of, {"elapsed_time_per_iteration", "ms", true, elapsed}, done));
  findings.push_back(judge_measure(
      of, {"mem_usage", "", true, mean_of(steps, [](const CvsStep& step) { return step.memory_fraction; })}, done));
  const bool has_work = tflops && tokens && *tflops > 0 && *tokens > 0;
  note_contradictions(of, devices, has_work ? std::optional(*tflops * 1e3 / *tokens) : std::nullopt, findings);
  return findings;
}

// Upstream's tests: each value of the last lines must reach its bound, the time of an iteration too.
CvsFindings judge_as_upstream(const CvsCase& of, const CvsLog& log) {
  CvsFindings findings;
  for (const CvsPhrase& phrase : log.failures) {
    findings.push_back({"results", "log", FindingLevel::kError,
                        fmt::format("{}:{}: {}", log.file, phrase.line, phrase.text),
                        fmt::format("no '{}'", phrase.phrase), ""});
  }
  const bool is_complete = is_complete_for_cvs(log);
  findings.push_back({"results", "complete", is_complete ? FindingLevel::kOk : FindingLevel::kError,
                      is_complete ? "the last lines have a speed" : "the last lines have no speed",
                      "throughput per GPU", ""});
  const auto values = cvs_tail_values(log);
  for (const CvsBound& bound : of.bounds) {
    const auto found = values.find(bound.key);
    if (found == values.end()) {
      findings.push_back(
          {"performance", bound.key, FindingLevel::kNote, "not in the last lines, which CVS lets pass", "", ""});
      continue;
    }
    const double least = *std::min_element(found->second.begin(), found->second.end());
    findings.push_back({"performance", bound.key, least >= bound.value ? FindingLevel::kOk : FindingLevel::kError,
                        fmt::format("{}, the lowest of {} in the last lines", number_of(least), found->second.size()),
                        fmt::format("at least {}, as CVS compares every value", number_of(bound.value)), ""});
  }
  return findings;
}

}  // namespace megalith
