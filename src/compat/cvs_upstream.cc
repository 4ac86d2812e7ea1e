// --compare cvs: the verdict of CVS's own tests, with their slips.
#include <fmt/format.h>

#include <algorithm>

#include "compat/cvs_judge.h"

namespace megalith {
namespace {

// Files of cases: each value of the last lines must reach its bound, the time of an iteration too.
void judge_cases(const CvsCase& of, const CvsLog& log, CvsFindings& findings) {
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
                        fmt::format("{}, the lowest of {} in the last lines", cvs_number(least), found->second.size()),
                        fmt::format("at least {}, as CVS compares every value", cvs_number(bound.value)), ""});
  }
}

// Sweeps: the summary's last value, else the mean of the whole log without its first value. torchtitan's metrics have
// other names than its thresholds, so none is found.
std::map<std::string, double> sweep_values(const CvsCase& of, const CvsLog& log) {
  constexpr double kDevicesPerNode = 8;
  std::map<std::string, double> values = log.summary;
  if (of.trainer != "megatron") return {};
  for (const auto& [key, mean] : log.whole) {
    if (!values.contains(key) && mean.count > 0) values[key] = mean.value();
  }
  // TFLOP/s over a baseline in tokens/s.
  if (values.contains("throughput_per_gpu") && of.sweep->baseline_tokens_per_s > 0) {
    const double nodes = static_cast<double>(of.nnodes) / static_cast<double>(of.sweep->baseline_nodes);
    values["scaling_efficiency_pct"] = values["throughput_per_gpu"] * static_cast<double>(of.nnodes) * kDevicesPerNode /
                                       (nodes * of.sweep->baseline_tokens_per_s) * 100;
  }
  return values;
}

void judge_sweep(const CvsCase& of, const CvsLog& log, CvsFindings& findings) {
  const bool is_complete = log.last_iteration() >= of.training_iterations;
  findings.push_back({"results", "complete", is_complete ? FindingLevel::kOk : FindingLevel::kError,
                      std::to_string(log.last_iteration()), std::to_string(of.training_iterations), ""});
  const std::map<std::string, double> values = sweep_values(of, log);
  for (const CvsBound& bound : of.bounds) {
    const auto found = values.find(bound.key);
    const bool is_good = found != values.end() && bound.holds(found->second, false, values);
    findings.push_back({"performance", bound.key,
                        !bound.is_judged(of.sweep->enforces_thresholds) ? FindingLevel::kNote
                        : is_good                                       ? FindingLevel::kOk
                                                                        : FindingLevel::kError,
                        found == values.end() ? "missing from what CVS reads" : cvs_number(found->second),
                        bound.expected(false, ""), ""});
  }
  if (!of.sweep->loss_curve) return;
  for (const CvsFinding& one : judge_convergence(log.steps, of)) {
    if (one.check == "loss curve") findings.push_back(one);
  }
}

}  // namespace

CvsFindings judge_as_upstream(const CvsCase& of, const CvsLog& log) {
  CvsFindings findings;
  for (const CvsPhrase& phrase : log.failures) {
    findings.push_back({"results", "log", FindingLevel::kError,
                        fmt::format("{}:{}: {}", log.file, phrase.line, phrase.text),
                        fmt::format("no '{}'", phrase.phrase), ""});
  }
  of.sweep ? judge_sweep(of, log, findings) : judge_cases(of, log, findings);
  return findings;
}

}  // namespace megalith
