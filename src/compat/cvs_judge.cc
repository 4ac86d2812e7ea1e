#include "compat/cvs_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "compat/cvs_patterns.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// Refuses a log that is truncated or of another run: judging it would mean nothing.
void check_is_same_run(const CvsCase& of, const CvsRun& run) {
  std::vector<UserError> errors;
  const CvsLog& log = run.main_log();
  const bool is_torchtitan = of.trainer == "torchtitan";  // prints every tenth step
  if (log.steps.empty()) {
    errors.emplace_back(fmt::format("{} has no line of an iteration as {} prints it", log.file,
                                    is_torchtitan ? "torchtitan" : "Megatron-LM"),
                        is_torchtitan ? "a run of megalith prints them with --log_style torchtitan"
                                      : "a run of megalith prints them with --log_format megatron --log_throughput; "
                                        "with --output_dir DIR it can be judged by --run DIR");
    throw UserErrors(errors);
  }
  if (log.train_iters > 0 && log.train_iters != of.training_iterations) {
    errors.emplace_back(fmt::format("{} is of another run: it has {} iterations to do, and training_iterations is {}",
                                    log.file, log.train_iters, of.training_iterations),
                        fmt::format("give that run's log, or --set training_iterations={}", log.train_iters));
  }
  if (const auto batch = log.steps.back().batch_size; batch && *batch != of.batch_size) {
    errors.emplace_back(fmt::format("{} is of another run: its global batch size is {}, and batch_size is {}", log.file,
                                    *batch, of.batch_size),
                        fmt::format("give that run's log, or --set batch_size={}", *batch));
  }
  if (!is_torchtitan && run.record && run.record->exit_code == 0 && run.record->status == "finished" &&
      log.last_iteration() < run.record->last_iteration) {
    errors.emplace_back(fmt::format("{} is cut: it ends at iteration {}, and run.json says that the run finished at {}",
                                    log.file, log.last_iteration(), run.record->last_iteration),
                        "give the whole log");
  }
  if (!errors.empty()) throw UserErrors(errors);
  check_log_is_whole(log);
}

std::string plain_option(const RunStart& start, const std::string& name) {
  const auto found = start.options.find(name);
  return found == start.options.end() ? "" : found->second;
}

// Settings in run.json or Megatron-LM's list that differ from the case.
CvsFindings differing_settings(const CvsCase& of, const CvsRun& run) {
  const std::pair<const char*, int64_t> expected[] = {{"seq_length", of.sequence_length},
                                                      {"micro_batch_size", of.micro_batch_size},
                                                      {"tensor_model_parallel_size", of.tensor_ranks()},
                                                      {"pipeline_model_parallel_size", of.pipeline_parallelism}};
  CvsFindings findings;
  for (const auto& [name, value] : expected) {
    std::optional<int64_t> found = run.main_log().argument(name);
    if (run.record) found = parse_integer(plain_option(*run.record, name)).value_or(found.value_or(value));
    if (!found || *found == value) continue;
    findings.push_back({"configuration", name, FindingLevel::kWarning, std::to_string(*found), std::to_string(value),
                        "the thresholds of the case are made for what it says"});
  }
  return findings;
}

CvsFindings judge_configuration(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options) {
  CvsFindings findings;
  findings.push_back(
      {"configuration", "case", FindingLevel::kOk,
       fmt::format("{}: {} node{} of {} device{}, {} iterations of {} x {} tokens", of.name(), of.nodes_of_run(),
                   of.nodes_of_run() == 1 ? "" : "s", options.devices_per_node,
                   options.devices_per_node == 1 ? "" : "s", of.training_iterations, of.batch_size, of.sequence_length),
       "", ""});
  for (const std::string& note : of.notes) {
    findings.push_back({"configuration", "note", FindingLevel::kNote, note, "", ""});
  }
  CvsFindings differing = differing_settings(of, run);
  findings.insert(findings.end(), differing.begin(), differing.end());
  return findings;
}

void judge_axes(const CvsCase& of, const RunStart& record, int64_t num_ranks, CvsFindings& findings) {
  if (record.axes.empty()) return;
  const auto size = [&](const char* axis) {
    const auto found = record.axes.find(axis);
    return found == record.axes.end() ? int64_t{1} : found->second;
  };
  const int64_t model = of.tensor_ranks() * of.pipeline_parallelism * size("cp");
  const std::pair<const char*, int64_t> expected[] = {{"tp", of.tensor_ranks()},
                                                      {"pp", of.pipeline_parallelism},
                                                      {"dp", num_ranks % model == 0 ? num_ranks / model : 0}};
  for (const auto& [axis, ranks] : expected) {
    const bool is_good = size(axis) == ranks;
    findings.push_back({"communication", fmt::format("axis {}", axis),
                        is_good ? FindingLevel::kOk : FindingLevel::kError,
                        fmt::format("{} rank{}", size(axis), size(axis) == 1 ? "" : "s"), std::to_string(ranks),
                        is_good ? "" : "start the run with the sizes of the case"});
  }
}

}  // namespace

bool CvsRun::has_steps() const {
  return std::any_of(logs.begin(), logs.end(), [](const CvsLog& log) { return !log.steps.empty(); });
}

const CvsLog& CvsRun::main_log() const {
  MEGALITH_CHECK(!logs.empty(), "a run without a log");
  return *std::max_element(logs.begin(), logs.end(),
                           [](const CvsLog& a, const CvsLog& b) { return a.steps.size() < b.steps.size(); });
}

bool CvsVerdict::is_passed() const {
  return std::none_of(findings.begin(), findings.end(),
                      [](const CvsFinding& one) { return one.level == FindingLevel::kError; });
}

CvsFindings judge_communication(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options) {
  const int64_t expected = of.nodes_of_run() * options.devices_per_node;
  const std::string expected_text = fmt::format("{} x {} = {}", of.nodes_of_run(), options.devices_per_node, expected);
  CvsFindings findings;
  const auto add_ranks = [&](int64_t found, const std::string& source) {
    const bool is_good = found == expected;
    findings.push_back(
        {"communication", "ranks", is_good ? FindingLevel::kOk : FindingLevel::kError,
         fmt::format("{} ({})", found, source), expected_text,
         is_good ? "" : "start a rank for each device of each node; --devices_per_node says how many there are"});
  };
  if (!run.record) {
    if (const auto world = run.main_log().world_size) {
      add_ranks(*world, "as the log says");
    } else {
      findings.push_back({"communication", "ranks", FindingLevel::kWarning, "no run.json lies beside the log",
                          expected_text, "give --output_dir to the run; verify then reads run.json there"});
    }
    return findings;
  }
  const RunStart& record = *run.record;
  const std::set<std::string> hosts(record.hosts.begin(), record.hosts.end());
  add_ranks(std::ssize(record.hosts), "run.json");
  const bool has_nodes = std::ssize(hosts) == of.nodes_of_run();
  findings.push_back({"communication", "nodes", has_nodes ? FindingLevel::kOk : FindingLevel::kError,
                      fmt::format("{}: {}", hosts.size(), join({hosts.begin(), hosts.end()}, ", ")),
                      std::to_string(of.nodes_of_run()), has_nodes ? "" : "start the run on every node"});
  judge_axes(of, record, expected, findings);
  if (!record.back_end.empty()) {
    findings.push_back({"communication", "back end", FindingLevel::kOk,
                        fmt::format("{}{}, the ranks had met after {:.0f} ms", record.back_end,
                                    record.interface.empty() ? "" : " over " + record.interface, record.meeting_ms),
                        "", ""});
  }
  return findings;
}

CvsFindings judge_results(const CvsCase& of, const CvsRun& run) {
  CvsFindings findings;
  const CvsLog& log = run.main_log();
  const bool is_done = log.last_iteration() >= of.training_iterations;
  findings.push_back(
      {"results", "iterations", is_done ? FindingLevel::kOk : FindingLevel::kError,
       fmt::format("{}{}", log.last_iteration(), log.ends_in_line && !is_done ? ", and the log ends in a line" : ""),
       std::to_string(of.training_iterations),
       is_done ? "" : "the run ended early: its last lines, and those of the other nodes, say why"});
  if (run.record) {
    const RunStart& record = *run.record;
    const bool is_good = record.exit_code == 0;
    findings.push_back({"results", "exit code", is_good ? FindingLevel::kOk : FindingLevel::kError,
                        record.exit_code ? fmt::format("{} ({})", *record.exit_code, record.status)
                                         : fmt::format("none ({})", record.status),
                        "0", is_good ? "" : "the run failed, was killed, or still runs"});
  }
  bool has_failure = false;
  for (const CvsLog& one : run.logs) {
    for (const CvsPhrase& phrase : one.failures) {
      has_failure = true;
      findings.push_back({"results", "log", FindingLevel::kError,
                          fmt::format("{}:{}: {}", one.file, phrase.line, phrase.text),
                          fmt::format("no '{}'", phrase.phrase), "a device or the network failed"});
    }
    if (one.out_of_memory.empty() || is_done) continue;
    const CvsPhrase& phrase = one.out_of_memory.front();
    findings.push_back({"results", "memory", FindingLevel::kError,
                        fmt::format("{}:{}: {}", one.file, phrase.line, phrase.text), "enough memory",
                        "lower micro_batch_size, or set recompute or fsdp to 1"});
  }
  if (!has_failure) {
    findings.push_back({"results", "log", FindingLevel::kOk, "no phrase of a failure", "", ""});
  }
  CvsFindings kernel = judge_kernel_log(run.kernel_log);
  findings.insert(findings.end(), kernel.begin(), kernel.end());
  return findings;
}

CvsFindings judge_kernel_log(const std::optional<std::string>& kernel_log) {
  if (!kernel_log) {
    return {{"results", "kernel log", FindingLevel::kNote,
             "not looked at: it may not be read here, or run.json does not say when the run was", "", ""}};
  }
  CvsFindings findings;
  constexpr std::string_view kKernel = "kernel_";
  const auto phrases = cvs_patterns::phrases_of(kKernel);  // exempt ones come first
  for (size_t begin = 0; begin < kernel_log->size();) {
    const size_t end = std::min(kernel_log->find('\n', begin), kernel_log->size());
    const std::string_view line = std::string_view(*kernel_log).substr(begin, end - begin);
    begin = end + 1;
    const auto* row = cvs_patterns::first_phrase(phrases, line);
    if (row == nullptr || row->kind == "kernel_exempt") continue;
    findings.push_back({"results", fmt::format("kernel log, {}", row->kind.substr(kKernel.size())),
                        row->kind == "kernel_warn" ? FindingLevel::kWarning : FindingLevel::kError,
                        std::string(line.substr(0, 200)), fmt::format("no '{}'", row->phrase),
                        "look at this machine before it is used again"});
  }
  if (findings.empty())
    findings.push_back({"results", "kernel log", FindingLevel::kOk, "no phrase of a failure", "", ""});
  return findings;
}

CvsVerdict judge_cvs_run(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options) {
  if (!run.launch.empty() && !run.has_steps()) {
    CvsVerdict verdict{.run = run.name, .of = of, .findings = run.launch, .steps = {}};
    verdict.findings.push_back({"results", "iterations", FindingLevel::kError, "none",
                                std::to_string(of.training_iterations),
                                "the run did not come to train: what stands above, or its log, says why"});
    return verdict;
  }
  check_is_same_run(of, run);
  const CvsLog& log = run.main_log();
  CvsVerdict verdict{.run = run.name, .of = of, .findings = judge_configuration(of, run, options), .steps = log.steps};
  const auto add = [&](const CvsFindings& more) {
    verdict.findings.insert(verdict.findings.end(), more.begin(), more.end());
  };
  add(run.launch);
  if (options.as_upstream) {
    add(judge_as_upstream(of, log));
  } else {
    add(judge_communication(of, run, options));
    add(judge_convergence(log.steps, of));
    add(judge_performance(of, log.steps, options));
    add(judge_results(of, run));
  }
  return verdict;
}

}  // namespace megalith
