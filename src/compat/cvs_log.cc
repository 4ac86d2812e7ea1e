#include "compat/cvs_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <span>

#include "compat/cvs_patterns.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "metrics/run_history.h"

namespace megalith {
namespace {

namespace patterns = cvs_patterns;

// std::regex recurses once for each character, so longer lines are not matched.
constexpr size_t kLongestLine = 4096;
constexpr size_t kMostPhrases = 20;
constexpr size_t kMostArguments = 2000;

class Field {
 public:
  explicit Field(const char* pattern) : regex_(pattern, std::regex::ECMAScript | std::regex::icase) {}

  std::optional<std::string> text(const std::string& line) const {
    std::smatch found;
    if (!std::regex_search(line, found, regex_)) return std::nullopt;
    return found[1].str();
  }
  std::optional<double> number(const std::string& line) const {
    const auto written = text(line);
    return written ? number_of(lower_case(*written)) : std::nullopt;
  }
  std::optional<int64_t> whole(const std::string& line) const {
    const auto written = text(line);
    return written ? parse_integer(*written) : std::nullopt;
  }
  const std::regex& regex() const { return regex_; }

 private:
  static std::optional<double> number_of(const std::string& written) {
    if (written.ends_with("nan")) return std::numeric_limits<double>::quiet_NaN();
    if (written.ends_with("inf")) return std::numeric_limits<double>::infinity();
    std::string plain = written;
    std::erase(plain, ',');  // torchtitan's thousands
    return parse_number(plain);
  }

  std::regex regex_;
};

struct LogFields {
  Field titan_step{patterns::kTitanStep}, titan_loss{patterns::kTitanLoss}, titan_grad_norm{patterns::kTitanGradNorm},
      titan_memory_percent{patterns::kTitanMemoryPercent}, titan_tokens{patterns::kTitanTokens},
      titan_tflops{patterns::kTitanTflops};
  Field iteration{patterns::kIteration}, elapsed{patterns::kElapsed}, throughput{patterns::kThroughput},
      tokens{patterns::kTokens}, memory{patterns::kMemory}, memory_percent{patterns::kMemoryPercent},
      loss{patterns::kLoss}, grad_norm{patterns::kGradNorm}, batch{patterns::kBatch}, skipped{patterns::kSkipped},
      nan{patterns::kNan}, world_size{patterns::kWorldSize}, argument{patterns::kArgument};
};

class LogReader {
 public:
  explicit LogReader(CvsLog& log) : log_(log) {}

  void line(std::string_view whole, int64_t number) {
    look_for(failures_, whole, number, log_.failures);
    look_for(out_of_memory_, whole, number, log_.out_of_memory);
    const bool may_be_iteration = whole.find("iteration") != std::string_view::npos;
    const bool may_be_setting = log_.steps.empty() && (whole.find(" ..") != std::string_view::npos ||
                                                       whole.find("world size") != std::string_view::npos);
    const bool may_be_titan = whole.find("tps:") != std::string_view::npos;
    if (!may_be_iteration && !may_be_setting && !may_be_titan) return;
    const std::string text(whole.substr(0, kLongestLine));
    if (may_be_iteration) read_step(text);
    if (may_be_setting) read_setting(text);
    if (may_be_titan) read_titan_step(text);
  }

 private:
  static void look_for(const std::vector<patterns::CvsPhraseRow>& phrases, std::string_view text, int64_t number,
                       std::vector<CvsPhrase>& found) {
    if (found.size() >= kMostPhrases) return;
    if (const auto* row = patterns::first_phrase(phrases, text)) {
      found.push_back({number, row->phrase, std::string(trim(text.substr(0, 200)))});
    }
  }

  void read_setting(const std::string& text) {
    if (const auto size = fields_.world_size.whole(text)) log_.world_size = size;
    std::smatch found;
    if (log_.arguments.size() < kMostArguments && std::regex_search(text, found, fields_.argument.regex())) {
      log_.arguments[found[1].str()] = std::string(trim(found[2].str()));
    }
  }

  // Only lines with a time report an iteration: others, such as a checkpoint's, mention one.
  void read_step(const std::string& text) {
    std::smatch found;
    if (!std::regex_search(text, found, fields_.iteration.regex())) return;
    const auto iteration = parse_integer(found[1].str()), train_iters = parse_integer(found[2].str());
    CvsStep step;
    step.elapsed_ms = fields_.elapsed.number(text);
    if (!iteration || !train_iters || *iteration < 1 || !step.elapsed_ms) return;
    step.iteration = *iteration;
    log_.train_iters = *train_iters;
    step.tflops = fields_.throughput.number(text);
    step.tokens_per_s = fields_.tokens.number(text);
    step.memory_fraction = fields_.memory.number(text);
    if (const auto percent = fields_.memory_percent.number(text); percent && !step.memory_fraction) {
      step.memory_fraction = *percent / 100;
    }
    step.loss = fields_.loss.number(text);
    step.grad_norm = fields_.grad_norm.number(text);
    step.batch_size = fields_.batch.whole(text);
    step.num_skipped = fields_.skipped.whole(text).value_or(0);
    step.num_nan = fields_.nan.whole(text).value_or(0);
    add(step);
  }

  void read_titan_step(const std::string& colored) {
    const std::string text = without_colors(colored);
    std::smatch found;
    if (text.find("validate step:") != std::string::npos) return;
    if (!std::regex_search(text, found, fields_.titan_step.regex())) return;
    const auto iteration = parse_integer(found[1].str());
    if (!iteration || *iteration < 1) return;
    CvsStep step;
    step.iteration = *iteration;
    step.loss = fields_.titan_loss.number(text);
    step.grad_norm = fields_.titan_grad_norm.number(text);
    step.tokens_per_s = fields_.titan_tokens.number(text);
    step.tflops = fields_.titan_tflops.number(text);
    if (const auto percent = fields_.titan_memory_percent.number(text)) step.memory_fraction = *percent / 100;
    add(step);
  }

  static std::string without_colors(const std::string& text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\x1b') {
        plain += text[i];
        continue;
      }
      while (i < text.size() && text[i] != 'm') ++i;
    }
    return plain;
  }

  void add(const CvsStep& step) {
    // After a restart, repeated iterations replace the earlier ones.
    while (!log_.steps.empty() && log_.steps.back().iteration >= step.iteration) log_.steps.pop_back();
    log_.steps.push_back(step);
  }

  CvsLog& log_;
  const std::vector<patterns::CvsPhraseRow> failures_ = patterns::phrases_of("failure"),
                                            out_of_memory_ = patterns::phrases_of("out_of_memory");
  LogFields fields_;
};

// Each line covers the iterations since the line before it; the first is assumed to cover as many as the second.
void set_beginnings(std::vector<CvsStep>& steps) {
  for (size_t i = 1; i < steps.size(); ++i) steps[i].before = steps[i - 1].iteration;
  if (steps.empty()) return;
  CvsStep& first = steps.front();
  const int64_t interval = steps.size() > 1 ? steps[1].num_iterations() : first.iteration;
  first.before = std::max<int64_t>(0, first.iteration - interval);
}

std::string last_lines(std::string_view text, int count) {
  size_t begin = text.size();
  if (begin > 0 && text[begin - 1] == '\n') --begin;
  for (int i = 0; i < count && begin != std::string_view::npos; ++i) {
    begin = begin == 0 ? std::string_view::npos : text.rfind('\n', begin - 1);
  }
  std::string_view rest = begin == std::string_view::npos ? text : text.substr(begin + 1);
  std::string lines;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    lines += rest.substr(0, std::min(end, kLongestLine));
    lines += '\n';
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

// The values of measures in a text, case-insensitive.
class MeasureFinder {
 public:
  explicit MeasureFinder(std::span<const patterns::TailPattern> all) {
    for (const auto& [key, pattern] : all) {
      regexes_.emplace_back(key, std::regex(pattern, std::regex::ECMAScript | std::regex::icase));
    }
  }

  template <typename Take>
  void each(const std::string& text, const Take& take) const {
    for (const auto& [key, regex] : regexes_) {
      for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
        if (const auto value = parse_number((*match)[1].str())) take(key, *value);
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::regex>> regexes_;
};

// The values that CVS's sweeps find.
void read_for_sweeps(std::string_view text, CvsLog& log) {
  MeasureFinder(patterns::kSummary).each(log.tail, [&](const std::string& key, double value) {
    log.summary[key] = value;
  });
  const MeasureFinder whole(patterns::kWhole);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, std::min(end - begin, kLongestLine));
    begin = end + 1;
    const bool may_have_one = line.find("per GPU") != std::string_view::npos ||
                              line.find("mem usages") != std::string_view::npos ||
                              line.find("tokens/GPU/s") != std::string_view::npos ||
                              line.find("elapsed time") != std::string_view::npos;
    if (!may_have_one) continue;
    whole.each(std::string(line), [&](const std::string& key, double value) { log.whole[key].add(value); });
  }
}

// The most common number of iterations per line.
int64_t usual_interval(const std::vector<CvsStep>& steps) {
  std::vector<int64_t> gaps;
  for (size_t i = 1; i < steps.size(); ++i) gaps.push_back(steps[i].num_iterations());
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
  return gaps[gaps.size() / 2];
}

}  // namespace

void CvsMean::add(double value) {
  if (count++ == 0) first = value;
  sum += value;
}

std::optional<int64_t> CvsLog::argument(const std::string& name) const {
  const auto found = arguments.find(name);
  return found == arguments.end() ? std::nullopt : parse_integer(found->second);
}

CvsLog parse_cvs_log(std::string_view text, const std::string& file) {
  CvsLog log;
  log.file = file;
  LogReader reader(log);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    reader.line(text.substr(begin, end - begin), ++number);
    begin = end + 1;
  }
  set_beginnings(log.steps);
  log.tail = last_lines(text, patterns::kTailLines);
  read_for_sweeps(text, log);
  log.ends_in_line = !text.empty() && text.back() != '\n';
  return log;
}

CvsLog read_cvs_log(const std::filesystem::path& file) {
  const std::string text = read_stream(file);
  if (trim(text).empty()) {
    throw UserError(fmt::format("{} is empty", file.string()), "the run wrote nothing, or writes its log elsewhere");
  }
  return parse_cvs_log(text, file.string());
}

CvsLog read_cvs_metrics(const std::filesystem::path& metrics_file) {
  const RunHistory history = read_run_history(metrics_file);
  CvsLog log;
  log.file = metrics_file.string();
  log.is_metrics_file = true;
  for (const StepLine& line : history.steps) {
    log.train_iters = line.train_iters;
    CvsStep step{.before = line.iteration - 1,
                 .iteration = line.iteration,
                 .loss = line.loss,
                 .grad_norm = line.grad_norm,
                 .elapsed_ms = line.elapsed_ms,
                 .tflops = line.tflops_per_device,
                 .causal_tflops = line.causal_tflops_per_device,
                 .tokens_per_s = line.tokens_per_s_per_device,
                 .memory_fraction = line.memory_used_fraction,
                 .batch_size = line.global_batch_size,
                 .num_skipped = line.is_skipped ? 1 : 0,
                 .num_nan = line.is_nan ? 1 : 0};
    log.steps.push_back(step);
  }
  return log;
}

void check_log_is_whole(const CvsLog& log) {
  if (log.steps.size() < 2) return;
  const int64_t interval = usual_interval(log.steps);
  const auto fail = [&](int64_t first, int64_t last) {
    throw UserError(fmt::format("{} is cut: the lines of iterations {} to {} are missing", log.file, first, last),
                    "give the whole log; of a run that went on from a checkpoint, the logs before it as well");
  };
  if (log.steps.front().before > 0) fail(1, log.steps.front().before);
  for (size_t i = 1; i < log.steps.size(); ++i) {
    if (log.steps[i].num_iterations() > interval) fail(log.steps[i].before + 1, log.steps[i].iteration - 1);
  }
}

std::map<std::string, std::vector<double>> cvs_tail_values(const CvsLog& log) {
  std::map<std::string, std::vector<double>> values;
  MeasureFinder(patterns::kTail).each(log.tail, [&](const std::string& key, double value) {
    values[key].push_back(value);
  });
  return values;
}

bool is_complete_for_cvs(const CvsLog& log) {
  return std::regex_search(log.tail, std::regex(patterns::kTailComplete, std::regex::ECMAScript | std::regex::icase));
}

}  // namespace megalith
