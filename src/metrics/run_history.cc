#include "metrics/run_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith {
namespace {

constexpr int64_t kWarmUpSteps = 2;

// The main loss is the first member with this ending.
constexpr std::string_view kLossEnding = "loss";

std::string loss_name_of(const OrderedJson& line) {
  for (const auto& [name, value] : line.items()) {
    if (name.ends_with(kLossEnding)) return name;
  }
  return "";
}

double number_or_nan(const Json& line, const std::string& name, const std::string& where) {
  return json_find<double>(line, name, where).value_or(std::numeric_limits<double>::quiet_NaN());
}

StepLine step_of(const Json& line, const std::string& loss_name, const std::string& where) {
  StepLine step;
  step.iteration = json_get<int64_t>(line, "iteration", where);
  step.train_iters = json_get_or<int64_t>(line, "train_iters", 0, where);
  step.loss = loss_name.empty() ? std::numeric_limits<double>::quiet_NaN() : number_or_nan(line, loss_name, where);
  step.learning_rate = json_get_or<double>(line, "learning_rate", 0, where);
  step.elapsed_ms = json_get_or<double>(line, "elapsed_ms", 0, where);
  step.tokens_per_s_per_device = json_get_or<double>(line, "tokens_per_s_per_device", 0, where);
  step.tflops_per_device = json_get_or<double>(line, "tflops_per_device", 0, where);
  step.causal_tflops_per_device = json_get_or<double>(line, "causal_tflops_per_device", 0, where);
  step.memory_used_fraction = json_find<double>(line, "memory_used_fraction", where);
  step.global_batch_size = json_find<int64_t>(line, "global_batch_size", where);
  step.grad_norm = json_find<double>(line, "grad_norm", where);
  step.tokens = json_get_or<int64_t>(line, "tokens", 0, where);
  step.memory_peak_bytes = json_get_or<int64_t>(line, "memory_peak_bytes", 0, where);
  step.is_nan = json_get_or<bool>(line, "is_nan", false, where);
  step.is_skipped = json_get_or<bool>(line, "is_skipped", false, where);
  return step;
}

// Their losses have steps' names, after "evaluation_".
EvaluationLine evaluation_of(const Json& line, const std::string& where) {
  EvaluationLine evaluation;
  evaluation.iteration = json_get<int64_t>(line, "iteration", where);
  evaluation.set = json_get<std::string>(line, "set", where);
  evaluation.loss = number_or_nan(line, "evaluation_loss", where);
  return evaluation;
}

}  // namespace

RunHistory read_run_history(const std::filesystem::path& metrics_file) {
  RunHistory history;
  const MappedFile file(metrics_file);
  const std::string_view text = file.text();
  std::map<int64_t, std::pair<StepLine, bool>> steps;
  std::map<std::pair<size_t, int64_t>, EvaluationLine> evaluations;  // by the place of their set
  std::vector<std::string> sets;                                     // in order of appearance
  int64_t num_lines = 0, steps_of_start = 0;
  std::string run_id;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;  // being written, or of a killed run
    const std::string where = fmt::format("{}:{}", metrics_file.string(), ++num_lines);
    const std::string_view words = text.substr(begin, end - begin);
    begin = end + 1;
    if (words.empty()) continue;
    const Json line = parse_json(words, where);
    const std::string kind = json_get_or<std::string>(line, "kind", "step", where);
    const auto id = json_get_or<std::string>(line, "run_id", "", where);
    if (id != run_id) {
      run_id = id;
      steps_of_start = 0;
      history.run_ids.push_back(id);
    }
    const auto time = json_get_or<std::string>(line, "time", "", where);
    if (history.first_time.empty()) history.first_time = time;
    if (!time.empty()) history.last_time = time;
    if (kind == "step") {
      if (history.loss_name.empty()) history.loss_name = loss_name_of(OrderedJson::parse(words));
      const StepLine step = step_of(line, history.loss_name, where);
      steps[step.iteration] = {step, steps_of_start++ < kWarmUpSteps};
    } else if (kind == "evaluation") {
      EvaluationLine evaluation = evaluation_of(line, where);
      const auto set = static_cast<size_t>(std::ranges::find(sets, evaluation.set) - sets.begin());
      if (set == sets.size()) sets.push_back(evaluation.set);
      evaluations[{set, evaluation.iteration}] = std::move(evaluation);
    }  // newer versions' kinds
  }
  for (const auto& [iteration, step] : steps) {
    history.steps.push_back(step.first);
    history.is_warming_up.push_back(step.second);
  }
  for (auto& [key, evaluation] : evaluations) history.evaluations.push_back(std::move(evaluation));
  std::stable_sort(history.evaluations.begin(), history.evaluations.end(),
                   [](const EvaluationLine& a, const EvaluationLine& b) { return a.iteration < b.iteration; });
  return history;
}

int64_t RunHistory::num_tokens() const {
  int64_t count = 0;
  for (const StepLine& step : steps) count += step.tokens;
  return count;
}

double RunHistory::mean_elapsed_ms() const {
  double sum = 0, count = 0, warm_up_sum = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    warm_up_sum += steps[i].elapsed_ms;
    if (is_warming_up[i]) continue;
    sum += steps[i].elapsed_ms;
    count += 1;
  }
  if (steps.empty()) return 0;
  return count > 0 ? sum / count : warm_up_sum / static_cast<double>(steps.size());
}

// The harmonic mean over steps.
double RunHistory::mean_tokens_per_s_per_device() const {
  double tokens = 0, seconds = 0;
  for (const bool with_warm_up : {false, true}) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if ((is_warming_up[i] && !with_warm_up) || steps[i].tokens_per_s_per_device <= 0) continue;
      const auto count = static_cast<double>(steps[i].tokens);
      tokens += count;
      seconds += count / steps[i].tokens_per_s_per_device;
    }
    if (seconds > 0) return tokens / seconds;
  }
  return 0;
}

std::vector<std::string> RunHistory::evaluated_sets() const {
  std::vector<std::string> sets;
  for (const EvaluationLine& one : evaluations) {
    if (std::ranges::find(sets, one.set) == sets.end()) sets.push_back(one.set);
  }
  return sets;
}

std::string RunHistory::first_validation_set() const {
  for (const EvaluationLine& one : evaluations) {
    if (one.set.starts_with("validation")) return one.set;
  }
  return "";
}

std::optional<EvaluationLine> RunHistory::last_evaluation(const std::string& set) const {
  std::optional<EvaluationLine> last;
  for (const EvaluationLine& one : evaluations) {
    if (one.set == set) last = one;
  }
  return last;
}

std::optional<EvaluationLine> RunHistory::best_evaluation(const std::string& set) const {
  std::optional<EvaluationLine> best;
  for (const EvaluationLine& one : evaluations) {
    // No loss is better than a NaN.
    if (one.set == set && (!best || std::isnan(best->loss) || one.loss < best->loss)) best = one;
  }
  return best;
}

}  // namespace megalith
