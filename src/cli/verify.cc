// megalith verify: judges a training run as AMD's cluster validation suite (CVS) does, with the reasons.
//
// The criteria are in compat/; this file reads options and files, and prints.
#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "cli/print.h"
#include "compat/cvs_judge.h"
#include "compat/cvs_launch.h"
#include "compat/cvs_report.h"
#include "compat/cvs_suites.h"
#include "compat/cvs_sweep.h"
#include "compat/process.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "device/machine.h"
#include "launch/network.h"
#include "metrics/run_stamp.h"
#include "train/outputs.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVerifyUsage =
    "usage: megalith verify --config FILE.json [--case MODE/MODEL/GPU] [--set NAME=VALUE ...]\n"
    "                       [--log FILE ... | --run DIR ... | --launch docker|podman|none]\n"
    "                       [--compare cvs] [--scale_batch] [--json] [--junit FILE] [--page FILE]\n\n"
    "FILE.json is one of CVS's for Megatron-LM or torchtitan, or for rccl, ibperf or agfhc, by its path or by its\n"
    "name in configs/cvs/. Without --case, all runs of a sweep are judged.";

constexpr size_t kSecondsLength = sizeof("2026-01-31T09:01:28") - 1;

struct VerifyOptions {
  std::optional<std::string> case_name, launch, compare, junit, page;
  std::optional<int64_t> node_rank;
  std::vector<std::string> log, run, set;
  int64_t devices_per_node = 8;
  bool scale_batch = false, json = false, overwrite = false;

  void visit(OptionVisitor& v) {
    v.group("Verification");
    v.field("case", case_name,
            "The case to judge by, mode/model/GPU as the file names them, or a run of its sweep. Default: the one that "
            "fits what ran.");
    v.field("set", set, "NAME=VALUE of the file to replace, as many as there are; for what is still <changeme>.");
    v.field("log", log,
            "Logs of the run, one a node, or reports of rccl, ibperf or agfhc. Default: those under log_dir of the "
            "file. run.json is read where it lies beside them.");
    v.field("run", run, "Folders that --output_dir named, instead of logs.");
    v.field(
         "launch", launch,
         "Start the run here first: in a container of docker or podman, or without one. Over several nodes verify is "
         "started on each, and the last one judges.")
        .words({"docker", "podman", "none"});
    v.field("node_rank", node_rank,
            "This machine's place among the nodes. Default: NODE_RANK, else SLURM_NODEID, else 0.")
        .at_least(0);
    v.field("devices_per_node", devices_per_node, "Ranks that each node should have.").at_least(1);
    v.field("compare", compare, "'cvs' judges as its own tests do: every value of the last 15 lines at least.")
        .words({"cvs"});
    v.field("scale_batch", scale_batch, "Take batch_size/4 x nnodes instead of batch_size.");
    v.field("json", json, "Print one JSON object.");
    v.field("junit", junit, "Write the findings as JUnit's XML.");
    v.field("page", page, "Write them as a web page.");
    v.field("overwrite", overwrite, "Replace files that are there.");
  }
};

// Takes --NAME and all words after it up to the next option out of the arguments: they may hold commas and blanks.
std::vector<std::string> take_words(std::vector<std::string>& arguments, const std::string& name) {
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size();) {
    const std::string folded = fold_name(arguments[i].substr(0, arguments[i].find('=')));
    if (folded != "__" + name) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    if (const size_t equals = arguments[i].find('='); equals != std::string::npos) {
      words.push_back(arguments[i].substr(equals + 1));
    } else {
      for (; end < arguments.size() && !arguments[end].starts_with("--"); ++end) words.push_back(arguments[end]);
      if (end == i + 1) {
        throw UserError(
            fmt::format("--{} needs a value, but {}", name,
                        end < arguments.size() ? fmt::format("'{}' follows", arguments[end]) : "nothing follows"),
            fmt::format("write --{} VALUE", name));
      }
    }
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                    arguments.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return words;
}

std::string login_name() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr && entry->pw_name != nullptr ? entry->pw_name : std::to_string(::getuid());
}

fs::path find_cvs_file(const std::string& name, const fs::path& config_root) {
  std::error_code code;
  if (fs::exists(name, code)) return name;
  const fs::path ours = config_root / "cvs" / name;
  if (!config_root.empty() && fs::exists(ours, code)) return ours;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(config_root / "cvs", code)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  throw UserError(fmt::format("--config {}: no such file", name),
                  "give a file of CVS, or one of configs/cvs/: " + join(names, ", "));
}

// The record's last start that wrote this log; runs with other logs may share the folder. A start that names no log is
// taken to have written this one.
std::optional<RunStart> last_start(const fs::path& record, const fs::path& log = {}) {
  std::error_code code;
  if (!fs::exists(record, code)) return std::nullopt;
  std::vector<RunStart> starts = read_run_record(record);
  std::erase_if(starts, [&](const RunStart& start) {
    const auto named = start.options.find("log_file");
    return !log.empty() && named != start.options.end() && fs::path(named->second).filename() != log.filename();
  });
  if (starts.empty()) return std::nullopt;
  return std::move(starts.back());
}

// Kernel messages from while the run was on this machine; nothing if unreadable.
std::optional<std::string> kernel_log_of(const RunStart& start) {
  const bool was_here = std::find(start.hosts.begin(), start.hosts.end(), host_name()) != start.hosts.end();
  if (!was_here || start.begin.empty() || start.end.empty()) return std::nullopt;
  const ProcessResult result =
      run_process({.words = {"dmesg", "--time-format", "iso"}, .environment = {{"TZ", "UTC"}, {"LC_ALL", "C"}}});
  if (result.exit_code != 0) return std::nullopt;
  const std::string begin = start.begin.substr(0, kSecondsLength), end = start.end.substr(0, kSecondsLength);
  std::string kept;
  for (size_t at = 0; at < result.output.size();) {
    const size_t stop = std::min(result.output.find('\n', at), result.output.size());
    const std::string line = result.output.substr(at, stop - at);
    const std::string time = line.substr(0, kSecondsLength);
    if (begin <= time && time <= end) kept += line + "\n";
    at = stop + 1;
  }
  return kept;
}

CvsRun read_logs(const std::vector<std::string>& files) {
  CvsRun run{.name = files.front(), .logs = {}, .record = {}, .kernel_log = {}, .launch = {}};
  for (const std::string& file : files) {
    run.logs.push_back(read_cvs_log(file));
    // --launch puts it in a folder there.
    for (const char* place : {"run.json", "run/run.json"}) {
      if (!run.record) run.record = last_start(fs::path(file).parent_path() / place, file);
    }
  }
  return run;
}

CvsRun read_folder(const std::string& name) {
  const RunFolder folder{name};
  CvsRun run{.name = name, .logs = {}, .record = last_start(folder.record()), .kernel_log = {}, .launch = {}};
  std::error_code code;
  if (fs::exists(folder.metrics(), code)) run.logs.push_back(read_cvs_metrics(folder.metrics()));
  if (fs::exists(folder.log(), code)) run.logs.push_back(read_cvs_log(folder.log()));
  if (run.logs.empty()) {
    throw UserError(fmt::format("--run {} is not the folder of a run: it has neither metrics.jsonl nor log.txt", name),
                    "give a folder that --output_dir named, or a log with --log");
  }
  return run;
}

// CVS's log paths, one per node.
std::vector<std::string> logs_of_configuration(const CvsConfig& config, const CvsCase& of) {
  const std::string* log_dir = config.config.find("log_dir");
  std::vector<std::string> files;
  if (log_dir != nullptr && !is_unresolved(*log_dir)) {
    std::error_code code;
    for (int node = 0; fs::exists(cvs_log_path(config, of, node), code); ++node) {
      files.push_back(cvs_log_path(config, of, node).string());
    }
  }
  if (!files.empty()) return files;
  throw UserError(fmt::format("no log is given, and none lies in {}", cvs_log_path(config, of, 0).string()),
                  "give logs with --log, or the folder of a run with --run");
}

std::optional<int64_t> recorded_size(const CvsRun& run, const std::string& name) {
  if (run.record) {
    const auto found = run.record->options.find(name);
    if (found != run.record->options.end()) return parse_integer(found->second);
  }
  return run.main_log().argument(name);
}

CvsFacts facts_of(const CvsRun& run) {
  CvsFacts facts{
      .device = "", .num_layers = recorded_size(run, "num_layers"), .hidden_size = recorded_size(run, "hidden_size")};
  if (run.record) {
    facts.device = run.record->device;
  } else if (const GpuFacts gpus = read_gpus("/"); !gpus.devices.empty()) {
    facts.device = gpus.devices.front().name;
  }
  return facts;
}

// One run per log, until it is known which belong together.
std::vector<CvsRun> read_runs(const VerifyOptions& options, const CvsConfig& config, const CvsCase& of) {
  std::vector<CvsRun> runs;
  if (!options.run.empty()) {
    for (const std::string& folder : options.run) runs.push_back(read_folder(folder));
    return runs;
  }
  const std::vector<std::string> files = options.log.empty() ? logs_of_configuration(config, of) : options.log;
  for (const std::string& file : files) runs.push_back(read_logs({file}));
  return runs;
}

// Joins the logs of a run over several nodes; single-node cases have one run per node.
std::vector<CvsRun> grouped(const CvsCase& of, std::vector<CvsRun> runs) {
  if (!of.is_distributed) {
    if (std::ssize(runs) == of.num_runs()) return runs;
    throw UserError(fmt::format("nnodes is {}, which is as many runs of one node, and {} {} given", of.nnodes,
                                runs.size(), runs.size() == 1 ? "log is" : "logs are"),
                    fmt::format("give a log for each node, or --set nnodes={}", runs.size()));
  }
  CvsRun whole = std::move(runs.front());
  for (size_t i = 1; i < runs.size(); ++i) {
    std::move(runs[i].logs.begin(), runs[i].logs.end(), std::back_inserter(whole.logs));
    if (!whole.record) whole.record = std::move(runs[i].record);
  }
  std::vector<CvsRun> one;
  one.push_back(std::move(whole));
  return one;
}

int64_t own_node_rank(const VerifyOptions& options, const CvsCase& of,
                      const std::map<std::string, std::string>& environment) {
  int64_t rank = options.node_rank.value_or(0);
  for (const char* name : {"NODE_RANK", "SLURM_NODEID"}) {
    const auto found = environment.find(name);
    if (options.node_rank || found == environment.end()) continue;
    const std::optional<int64_t> value = parse_integer(found->second);
    if (!value || *value < 0)
      throw UserError(fmt::format("{} is '{}', expected a number", name, found->second), "give --node_rank");
    rank = *value;
    break;
  }
  if (rank < of.nnodes) return rank;
  throw UserError(fmt::format("this is node {}, and nnodes is {}", rank, of.nnodes), "nodes are counted from 0");
}

// Starts and judges this machine's part of the run. Over several nodes only the last node has iterations; the others
// report their launch.
std::vector<CvsVerdict> launch_and_judge(const VerifyOptions& options, const CvsConfig& config,
                                         const CommandContext& context) {
  CvsCaseRequest request{.name = options.case_name, .is_launch = true, .scale_batch = options.scale_batch, .facts = {}};
  if (const GpuFacts gpus = read_gpus("/"); !gpus.devices.empty()) request.facts.device = gpus.devices.front().name;
  const CvsCase of = resolve_cvs_case(config, request);
  const int64_t rank = own_node_rank(options, of, context.environment);
  const CvsLaunch launch{.engine = *options.launch,
                         .node_rank = rank,
                         .source_root = fs::absolute(context.config_root).parent_path(),
                         .machine = "/",
                         .resolve = this_host().resolve};
  CvsLaunched launched = launch_cvs_run(config, of, launch, run_process);
  CvsRun run{.name = cvs_log_path(config, of, rank).string(), .logs = {}, .record = {}, .kernel_log = {}, .launch = {}};
  std::error_code code;
  const bool judges = !of.is_distributed || rank == of.nnodes - 1;
  for (int64_t node = of.is_distributed ? 0 : rank; judges && node <= rank; ++node) {
    const fs::path file = cvs_log_path(config, of, node);
    if (launched.log.empty() || !fs::exists(file, code)) continue;
    run.logs.push_back(parse_cvs_log(read_stream(file), file.string()));
  }
  if (judges) run.record = last_start(RunFolder{cvs_run_folder(config, of, rank)}.record());
  run.launch = std::move(launched.findings);
  if (!judges) return {{.run = run.name, .of = of, .findings = run.launch, .steps = {}}};
  if (run.record) run.kernel_log = kernel_log_of(*run.record);
  return {judge_cvs_run(of, run,
                        {.devices_per_node = options.devices_per_node, .as_upstream = options.compare.has_value()})};
}

void judge_runs(const VerifyOptions& options, const CvsCase& of, std::vector<CvsRun> runs,
                std::vector<CvsVerdict>& verdicts) {
  const CvsJudgeOptions how{.devices_per_node = options.devices_per_node, .as_upstream = options.compare.has_value()};
  for (CvsRun& run : grouped(of, std::move(runs))) {
    if (run.record && !how.as_upstream) run.kernel_log = kernel_log_of(*run.record);
    verdicts.push_back(judge_cvs_run(of, run, how));
  }
}

std::vector<CvsVerdict> judge_all(const VerifyOptions& options, const CvsConfig& config) {
  std::vector<CvsVerdict> verdicts;
  CvsCaseRequest request{
      .name = options.case_name, .is_launch = false, .scale_batch = options.scale_batch, .facts = {}};
  if (!config.sweep) {
    std::vector<CvsRun> runs = read_runs(options, config, {});
    request.facts = facts_of(runs.front());
    judge_runs(options, resolve_cvs_case(config, request), std::move(runs), verdicts);
    return verdicts;
  }
  const bool is_whole = !options.case_name && options.log.empty() && options.run.empty();
  std::vector<std::optional<std::string>> names = {options.case_name};
  if (is_whole) names.assign(config.sweep->runs.begin(), config.sweep->runs.end());
  if (names.size() > 1 && config.trainer == "torchtitan") {
    throw UserError(fmt::format("{} has {} runs of torchtitan, and CVS writes all their logs to one place", config.file,
                                names.size()),
                    "choose the run of that log with --case: " + join(config.sweep->runs, ", "));
  }
  for (const std::optional<std::string>& name : names) {
    request.name = name;
    const CvsCase of = resolve_cvs_case(config, request);
    judge_runs(options, of, read_runs(options, config, of), verdicts);
  }
  return verdicts;
}

// Reports of a suite that does not train.
std::vector<CvsVerdict> judge_reports(const VerifyOptions& options, const CvsSuite& suite, const Json& root,
                                      const std::string& file) {
  for (const auto& [option, is_given] :
       {std::pair{"case", options.case_name.has_value()}, std::pair{"run", !options.run.empty()},
        std::pair{"launch", options.launch.has_value()}, std::pair{"set", !options.set.empty()},
        std::pair{"compare", options.compare.has_value()}, std::pair{"scale_batch", options.scale_batch}}) {
    if (is_given) {
      throw UserError(fmt::format("--{} is for training, and {} is of CVS's suite {}", option, file, suite.name),
                      "give its reports with --log");
    }
  }
  if (options.log.empty()) throw UserError("no report is given", "give reports of " + suite.name + " with --log");
  return {judge_cvs_suite(suite, root, file, options.log)};
}

void write_verdicts(const VerifyOptions& options, const std::vector<CvsVerdict>& verdicts) {
  if (options.json) {
    print_out("{}", dump_json_pretty(verdicts_json(verdicts)));
  } else {
    print_out("{}", verdicts_text(verdicts));
  }
  if (options.junit)
    write_file_atomic(*options.junit, verdicts_junit(verdicts, utc_timestamp().substr(0, kSecondsLength)));
  if (options.page) write_file_atomic(*options.page, verdicts_page(verdicts));
}

}  // namespace

int run_verify(CommandContext& context) {
  VerifyOptions options;
  OptionSet set(options);
  std::vector<std::string> config_words, log_words, run_words, set_words;
  if (!context.wants_help()) {
    config_words = take_words(context.arguments, "config");
    log_words = take_words(context.arguments, "log");
    run_words = take_words(context.arguments, "run");
    set_words = take_words(context.arguments, "set");
  }
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) return print_help(context, kVerifyUsage, set);
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  options.log.insert(options.log.end(), log_words.begin(), log_words.end());
  options.run.insert(options.run.end(), run_words.begin(), run_words.end());
  options.set.insert(options.set.end(), set_words.begin(), set_words.end());
  if (config_words.size() != 1) {
    throw UserError(fmt::format("verify takes one file of CVS, and {} are given", config_words.size()),
                    "megalith verify --config mi3xx_megatron_llama_single.json --log training.log");
  }
  const int num_sources = int{!options.log.empty()} + int{!options.run.empty()} + int{options.launch.has_value()};
  if (num_sources > 1) {
    throw UserError("two of --log, --run and --launch are given",
                    "give logs, or folders that --output_dir named, or start a run");
  }
  for (const auto& [option, path] : {std::pair{"junit", options.junit}, std::pair{"page", options.page}}) {
    if (!path) continue;
    if (auto taken = check_replaceable(option, *path, kVerdictsMark, options.overwrite)) throw std::move(*taken);
  }
  const fs::path file = find_cvs_file(config_words.front(), context.config_root);
  const std::string text = read_stream(file);
  std::vector<std::string> warnings;
  const Json root = parse_cvs_json(text, file.string(), warnings);
  std::vector<CvsVerdict> verdicts;
  if (const CvsSuite* suite = suite_of_file(root, file.string())) {
    for (const std::string& warning : warnings) context.log.warn("{}", warning);
    verdicts = judge_reports(options, *suite, root, file.string());
  } else {
    CvsConfig config = parse_cvs_config(text, file.string(), login_name());
    for (const std::string& warning : config.warnings) context.log.warn("{}", warning);
    set_cvs_values(config, options.set, login_name());
    verdicts = options.launch ? launch_and_judge(options, config, context) : judge_all(options, config);
  }
  write_verdicts(options, verdicts);
  const bool is_passed =
      std::all_of(verdicts.begin(), verdicts.end(), [](const CvsVerdict& one) { return one.is_passed(); });
  return is_passed ? kExitSuccess : kExitFailure;
}

std::vector<CommandOptions> verify_options() { return {options_of<VerifyOptions>("verify")}; }

}  // namespace megalith
