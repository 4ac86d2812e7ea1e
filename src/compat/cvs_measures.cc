// The parts of cvs_judge.h that compare numbers: the loss curve, and means of speed and memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

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

using StepValue = std::function<std::optional<double>(const CvsStep&)>;

// torchtitan prints the first step and then every tenth, with means since the line before.
bool has_means(const CvsCase& of) { return of.trainer == "torchtitan"; }

// Mean over iterations without the first two and the last, or over lines of means without the first; nothing if no line
// is left or has the value.
std::optional<double> mean_of(const CvsCase& of, const std::vector<CvsStep>& steps, const StepValue& value) {
  double sum = 0, count = 0;
  const size_t first = has_means(of) ? 1 : 0, last = has_means(of) ? 0 : 1;
  for (size_t i = first; i + last < steps.size(); ++i) {
    if (!has_means(of) && steps[i].before < kWarmUpIterations) continue;
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

// The gate of a sweep's loss_curve.
void judge_loss_curve(const CvsLossCurve& curve, const std::vector<CvsStep>& steps, CvsFindings& findings) {
  std::vector<const CvsStep*> all;
  for (const CvsStep& step : steps) {
    if (step.loss && std::isfinite(*step.loss)) all.push_back(&step);
  }
  std::vector<double> x, y;
  for (const CvsStep* step : all) {
    const bool is_milestone =
        std::find(curve.milestones.begin(), curve.milestones.end(), step->iteration) != curve.milestones.end();
    const bool is_end = step == all.front() || step == all.back();
    if (step->iteration % curve.sample_every != 0 && !is_milestone && !is_end) continue;
    x.push_back(static_cast<double>(step->iteration));
    y.push_back(*step->loss);
  }
  const std::string expected = fmt::format("below {}", cvs_number(curve.max_slope));
  if (x.size() < 2) {
    findings.push_back({"convergence", "loss curve", FindingLevel::kWarning, "fewer than two losses to compare",
                        expected, "train for more iterations"});
    return;
  }
  const double slope = slope_of(x, y);
  const bool is_good = slope < curve.max_slope;
  findings.push_back({"convergence", "loss curve",
                      is_good          ? FindingLevel::kOk
                      : curve.enforces ? FindingLevel::kError
                                       : FindingLevel::kNote,
                      fmt::format("slope {:.3e} a step over {} of its points, {:.4f} to {:.4f}", slope, x.size(),
                                  y.front(), y.back()),
                      expected, is_good ? "" : "look at learning rate, data and precision"});
}

void judge_loss(const std::vector<CvsStep>& steps, bool has_warm_up, CvsFindings& findings) {
  std::vector<double> x, y;
  for (const CvsStep& step : steps) {
    if (!step.loss || !std::isfinite(*step.loss) || (has_warm_up && step.before < kWarmUpIterations)) continue;
    x.push_back(static_cast<double>(step.iteration));
    y.push_back(*step.loss);
  }
  if (x.size() < 2) {
    findings.push_back({"convergence", "lm loss", FindingLevel::kError,
                        fmt::format("{} losses after the warm-up", x.size()), "a loss on each line",
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
  std::string remedy = "megalith doctor looks at the machine, docs/operating.md has what makes runs fast";
};

CvsFinding judge_measure(const CvsCase& of, const Measure& measure, int64_t num_iterations,
                         const std::map<std::string, double>& values) {
  const CvsBound* bound = of.find_bound(measure.key);
  const std::string unit = measure.unit.empty() ? "" : " " + measure.unit;
  const bool is_judged = bound != nullptr && bound->is_judged(!of.sweep || of.sweep->enforces_thresholds);
  CvsFinding finding{"performance", measure.key, FindingLevel::kOk, "", "", ""};
  if (bound != nullptr) finding.expected = bound->expected(measure.is_upper, unit);
  if (!measure.value) {
    finding.level = is_judged ? FindingLevel::kError : FindingLevel::kNote;
    const bool is_short = !has_means(of) && num_iterations < kWarmUpIterations + 2;
    finding.found = is_short ? fmt::format("{} iterations are too few for a mean", num_iterations)
                             : "the log does not say";
    if (is_judged) finding.remedy = is_short ? "train for at least four iterations" : "the run needs --log_throughput";
    return finding;
  }
  finding.found = fmt::format("{}{}{}", cvs_number(*measure.value), unit, measure.more);
  if (!is_judged) {
    finding.level = FindingLevel::kNote;
    finding.found += bound == nullptr                             ? ", not judged: no threshold"
                     : of.sweep && !of.sweep->enforces_thresholds ? ", not judged: enforce_thresholds is false"
                                                                  : ", not judged: its kind is info";
  } else if (!bound->holds(*measure.value, measure.is_upper, values)) {
    finding.level = FindingLevel::kError;
    finding.remedy = measure.remedy;
  }
  return finding;
}

// Measures that only some files have thresholds for.
void add_more_measures(const CvsCase& of, const std::vector<CvsStep>& steps, std::optional<double> tokens,
                       int64_t num_devices, std::vector<Measure>& measures, CvsFindings& findings) {
  if (of.find_bound("tokens_per_gpu_times_batch") != nullptr) {
    Measure product{"tokens_per_gpu_times_batch", "", false, std::nullopt};
    if (tokens) product.value = *tokens * static_cast<double>(of.batch_size);
    measures.push_back(product);
  }
  if (of.find_bound("loss") != nullptr) {
    measures.push_back({"loss", "", true, steps.empty() ? std::nullopt : steps.back().loss, ", the last one",
                        "look at learning rate, data and precision"});
  }
  if (of.find_bound("scaling_efficiency_pct") == nullptr || !of.sweep) return;
  if (of.sweep->baseline_tokens_per_s <= 0) {
    findings.push_back({"performance", "scaling_efficiency_pct", FindingLevel::kNote,
                        "not judged: scaling_baseline.tokens_per_sec_total is 0", "", ""});
    return;
  }
  Measure scaling{"scaling_efficiency_pct", "%", false, std::nullopt};
  if (tokens) {
    const double ideal = of.sweep->baseline_tokens_per_s * static_cast<double>(of.nodes_of_run()) /
                         static_cast<double>(of.sweep->baseline_nodes);
    scaling.value = *tokens * static_cast<double>(num_devices) / ideal * 100;
  }
  measures.push_back(scaling);
}

// Notes bounds that imply another rate than tokens_per_gpu.
void note_contradictions(const CvsCase& of, int64_t num_devices, std::optional<double> gflop_per_token,
                         CvsFindings& findings) {
  const CvsBound* tokens = of.find_bound("tokens_per_gpu");
  if (tokens == nullptr || tokens->value <= 0) return;
  const auto add = [&](const CvsBound& other, double implied) {
    if (other.value <= 0 || std::fabs(implied / tokens->value - 1) < kSameShare) return;
    findings.push_back(
        {"performance", "thresholds", FindingLevel::kNote,
         fmt::format("{} {} is {} tokens/s here, and tokens_per_gpu asks for {}: they were not made for one "
                     "run, and the stricter one decides",
                     other.key, cvs_number(other.value), cvs_number(implied), cvs_number(tokens->value)),
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

CvsFindings judge_convergence(const std::vector<CvsStep>& steps, const CvsCase& of) {
  CvsFindings findings;
  judge_finiteness(steps, findings);
  judge_skipped(steps, findings);
  if (of.sweep && of.sweep->loss_curve) {
    judge_loss_curve(*of.sweep->loss_curve, steps, findings);
    return findings;
  }
  const int64_t done = steps.empty() ? 0 : steps.back().iteration;
  if (done < kFewestForLoss) {
    findings.push_back(
        {"convergence", "lm loss", FindingLevel::kError, fmt::format("{} iterations: too short to judge", done),
         fmt::format("at least {}", kFewestForLoss), "--set training_iterations=30 and train for as many"});
    return findings;
  }
  judge_loss(steps, !has_means(of), findings);
  return findings;
}

CvsFindings judge_performance(const CvsCase& of, const std::vector<CvsStep>& steps, const CvsJudgeOptions& options) {
  const int64_t devices = of.nodes_of_run() * options.devices_per_node;
  const int64_t done = steps.empty() ? 0 : steps.back().iteration;
  const auto elapsed = mean_of(of, steps, [](const CvsStep& step) { return step.elapsed_ms; });
  const auto tflops = mean_of(of, steps, [](const CvsStep& step) { return step.tflops; });
  auto causal = mean_of(of, steps, [](const CvsStep& step) { return step.causal_tflops; });
  auto tokens = mean_of(of, steps, [](const CvsStep& step) { return step.tokens_per_s; });
  const bool is_computed = !tokens && elapsed && *elapsed > 0;
  if (is_computed) {
    tokens = static_cast<double>(of.batch_size * of.sequence_length) / (*elapsed / 1e3) / static_cast<double>(devices);
  }
  if (const double hidden = hidden_gflop_per_token(of); !causal && tflops && tokens && hidden > 0) {
    causal = *tflops - *tokens * hidden / 1e3;
  }
  Measure throughput{"throughput_per_gpu", "TFLOP/s", false, tflops};
  if (causal && *causal > 0)
    throughput.more = fmt::format(" ({} with attention halved for causality)", cvs_number(*causal));
  const auto memory = mean_of(of, steps, [](const CvsStep& step) { return step.memory_fraction; });
  std::vector<Measure> measures = {
      throughput,
      {"tokens_per_gpu", "tokens/s", false, tokens, is_computed ? " (computed from the time)" : ""},
      {"elapsed_time_per_iteration", "ms", true, elapsed},
      {"mem_usage", "", true, memory, "", "lower micro_batch_size, or set recompute or fsdp to 1"}};
  CvsFindings findings;
  add_more_measures(of, steps, tokens, devices, measures, findings);
  std::map<std::string, double> values;
  for (const Measure& measure : measures) {
    if (measure.value) values[measure.key] = *measure.value;
  }
  CvsFindings judged;
  for (const Measure& measure : measures) judged.push_back(judge_measure(of, measure, done, values));
  findings.insert(findings.begin(), judged.begin(), judged.end());
  const bool has_work = tflops && tokens && *tflops > 0 && *tokens > 0;
  note_contradictions(of, devices, has_work ? std::optional(*tflops * 1e3 / *tokens) : std::nullopt, findings);
  return findings;
}

}  // namespace megalith
