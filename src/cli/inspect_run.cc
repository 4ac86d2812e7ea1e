#include "cli/inspect_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "metrics/perplexity.h"
#include "metrics/run_comparison.h"
#include "metrics/run_history.h"
#include "train/outputs.h"
#include "train/run_record.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

struct RunsInspection {
  std::string page_file = "runs.html";
  bool overwrite = false;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("page_file", page_file, "The web page on the runs.");
    v.field("overwrite", overwrite, "Replace a file that is no such page.");
  }
};

// A run read from its folder, or from just a metrics_file.
struct FoundRun {
  std::vector<RunStart> starts;
  RunHistory history;
  bool has_metrics = false;
};

FoundRun find_run(const std::string& name) {
  FoundRun run;
  const RunFolder folder{name};
  if (!fs::exists(name)) {
    throw UserError(fmt::format("{} does not exist", name), "give a folder that --output_dir named, or a metrics_file");
  }
  if (!fs::is_directory(name)) {
    run.history = read_run_history(name);
    run.has_metrics = true;
    return run;
  }
  const bool has_record = fs::exists(folder.record());
  run.has_metrics = fs::exists(folder.metrics());
  if (!has_record && !run.has_metrics) {
    throw UserError(fmt::format("{} is not the folder of a run: it has neither run.json nor metrics.jsonl", name),
                    "give a folder that --output_dir named, or a metrics_file");
  }
  if (has_record) run.starts = read_run_record(folder.record());
  if (run.has_metrics) run.history = read_run_history(folder.metrics());
  return run;
}

std::string loss_words(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

// "node1 (4 ranks), node2 (4 ranks)"
std::string hosts_text(const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const std::string& host : hosts) {
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& one) { return one.first == host; });
    if (known == counts.end()) {
      counts.emplace_back(host, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [host, count] : counts) {
    text += fmt::format("{}{} ({} rank{})", text.empty() ? "" : ", ", host, count, count == 1 ? "" : "s");
  }
  return text;
}

std::string start_text(const RunStart& start, size_t number) {
  const std::string until = start.end.empty() ? "no end recorded" : "until " + start.end;
  std::string text = fmt::format("  {}  {} {}: {}\n", number, start.begin, until, start.status);
  text += fmt::format("     {}\n", join(start.command, " "));
  text += fmt::format("     in {}\n", start.directory);
  text += fmt::format("     on {}, {}\n", hosts_text(start.hosts), start.device);
  text += fmt::format("     from iteration {}{}, megalith {} ({}), torch {}, run_id {}\n", start.first_iteration,
                      start.end.empty() ? "" : fmt::format(" to {}", start.last_iteration), start.version, start.commit,
                      start.torch_version, start.run_id);
  return text;
}

std::string training_text(const RunHistory& history) {
  if (history.steps.empty()) return "training: no step was logged\n";
  const StepLine& first = history.steps.front();
  const StepLine& last = history.steps.back();
  const auto lowest = std::min_element(history.steps.begin(), history.steps.end(), [](const auto& a, const auto& b) {
    return (std::isnan(a.loss) ? INFINITY : a.loss) < (std::isnan(b.loss) ? INFINITY : b.loss);
  });
  const auto num_skipped =
      std::count_if(history.steps.begin(), history.steps.end(), [](const StepLine& step) { return step.is_skipped; });
  std::string text = fmt::format("training: iteration {} of {}, {} tokens\n", last.iteration, last.train_iters,
                                 format_count(static_cast<double>(history.num_tokens())));
  text += fmt::format("  {}: {} at iteration {}, {} at {}; lowest {} at {}\n",
                      history.loss_name.empty() ? "loss" : history.loss_name, loss_words(first.loss), first.iteration,
                      loss_words(last.loss), last.iteration, loss_words(lowest->loss), lowest->iteration);
  text += fmt::format("  speed: {} tokens/s a device, {:.4g} ms a step\n",
                      format_count(history.mean_tokens_per_s_per_device()), history.mean_elapsed_ms());
  if (last.memory_peak_bytes > 0) text += fmt::format("  tensors at most: {}\n", format_bytes(last.memory_peak_bytes));
  if (num_skipped > 0) text += fmt::format("  {} steps were skipped\n", num_skipped);
  return text;
}

std::string evaluations_text(const RunHistory& history) {
  std::string text;
  std::string loss_name = history.loss_name;  // as in files: "lm_loss"
  std::replace(loss_name.begin(), loss_name.end(), '_', ' ');
  const bool is_log_loss = has_perplexity(loss_name);
  for (const std::string& set : history.evaluated_sets()) {
    const auto last = history.last_evaluation(set), best = history.best_evaluation(set);
    const std::string unsure = is_log_loss ? fmt::format(" (perplexity {:.4g})", std::exp(last->loss)) : std::string();
    text += fmt::format("  {}: {} at iteration {}{}; best {} at {}\n", set, loss_words(last->loss), last->iteration,
                        unsure, loss_words(best->loss), best->iteration);
  }
  return text.empty() ? "" : "evaluations\n" + text;
}

std::string option_of(const RunStart& start, const std::string& name, const fs::path& otherwise) {
  const auto found = start.options.find(name);
  return found == start.options.end() ? otherwise.string() : plain_text(found->second);
}

std::string files_text(const std::string& name, const RunStart& start) {
  const RunFolder folder{name};
  std::string text;
  const fs::path checkpoints = option_of(start, "save", folder.checkpoints());
  if (const std::vector<int64_t> saved = list_checkpoints(checkpoints); !saved.empty()) {
    text += fmt::format("  {:<12} {}: iteration{} {}\n", "checkpoints", checkpoints.string(),
                        saved.size() == 1 ? "" : "s", fmt::join(saved, ", "));
  }
  const std::pair<const char*, fs::path> files[] = {
      {"model", option_of(start, "save_hf", folder.exported())},
      {"page", option_of(start, "page_file", folder.page())},
      {"picture", option_of(start, "loss_plot_file", folder.plot())},
      {"events", option_of(start, "tensorboard_dir", folder.tensorboard())},
      {"W&B", fs::path(option_of(start, "wandb_save_dir", folder.root)) / "wandb"},
      {"MLflow", option_of(start, "mlflow_dir", folder.mlflow())},
      {"metrics", option_of(start, "metrics_file", folder.metrics())},
      {"log", option_of(start, "log_file", folder.log())},
      {"options", folder.configuration()}};
  for (const auto& [what, path] : files) {
    if (fs::exists(path)) text += fmt::format("  {:<12} {}\n", what, path.string());
  }
  return text.empty() ? "" : "files\n" + text;
}

}  // namespace

int inspect_run(CommandContext& context) {
  if (context.wants_help()) {
    print_out("usage: megalith inspect run DIR\n");
    return kExitSuccess;
  }
  if (context.arguments.size() != 1) {
    throw UserError(fmt::format("inspect run takes one folder, and got {}", context.arguments.size()),
                    context.arguments.size() > 1
                        ? fmt::format("'megalith inspect runs {}' compares them", join(context.arguments, " "))
                        : "megalith inspect run DIR, with the folder that --output_dir named, or a metrics_file");
  }
  const std::string& name = context.arguments[0];
  const FoundRun run = find_run(name);
  std::string text = fmt::format("{}", name);
  if (!run.starts.empty()) {
    const RunStart& last = run.starts.back();
    text += fmt::format(": {}, {}\nstarts\n", last.model, last.status);
    for (size_t i = 0; i < run.starts.size(); ++i) text += start_text(run.starts[i], i + 1);
  } else {
    text += "\n";
  }
  if (run.has_metrics) text += training_text(run.history) + evaluations_text(run.history);
  if (!run.starts.empty()) text += files_text(name, run.starts.back());
  print_out("{}", text);
  return kExitSuccess;
}

int inspect_runs(CommandContext& context) {
  RunsInspection options;
  OptionSet set(options);
  const auto words = context.read_words(set,
                                        "usage: megalith inspect runs DIR DIR ... [--page_file FILE]\n\n"
                                        "DIR is a folder that --output_dir named, or a metrics_file.");
  if (!words) return kExitSuccess;
  if (words->size() < 2) {
    throw UserError(fmt::format("a comparison takes two runs or more, and got {}", words->size()),
                    "megalith inspect runs DIR DIR ...; 'megalith inspect run DIR' tells of one");
  }
  if (auto taken = check_replaceable("page_file", options.page_file, kRunsPageMark, options.overwrite)) {
    throw std::move(*taken);
  }
  std::vector<ComparedRun> runs;
  for (const std::string& name : *words) {
    FoundRun found = find_run(name);
    ComparedRun run{.name = name, .model = {}, .status = {}, .history = std::move(found.history), .options = {}};
    if (!found.starts.empty()) {
      run.model = found.starts.back().model;
      run.status = found.starts.back().status;
      run.options = std::move(found.starts.back().options);
    }
    runs.push_back(std::move(run));
  }
  size_t width = 3;
  for (const ComparedRun& run : runs) width = std::max(width, run.name.size());
  print_out("{:<{}}  {:>10}  {:>8}  {:>10}  {:>10}  {:>17}  {:>9}\n", "run", width, "iterations", "tokens", "loss",
            "evaluation", "tokens/s a device", "ms a step");
  for (const ComparedRun& run : runs) {
    const RunHistory& h = run.history;
    const auto last = h.last_evaluation(h.first_validation_set());
    print_out("{:<{}}  {:>10}  {:>8}  {:>10}  {:>10}  {:>17}  {:>9.4g}\n", run.name, width,
              h.steps.empty() ? 0 : h.steps.back().iteration, format_count(static_cast<double>(h.num_tokens())),
              h.steps.empty() ? "" : loss_words(h.steps.back().loss), last ? loss_words(last->loss) : "",
              format_count(h.mean_tokens_per_s_per_device()), h.mean_elapsed_ms());
  }
  for (const DifferingOption& option : differing_options(runs)) {
    std::vector<std::string> values;
    for (const std::string& value : option.values) values.push_back(value.empty() ? "default" : value);
    print_out("{}: {}\n", option.name, join(values, ", "));
  }
  write_file_atomic(options.page_file, render_run_comparison(runs));
  print_out("wrote {}\n", options.page_file);
  return kExitSuccess;
}

CommandOptions inspect_runs_options() { return options_of<RunsInspection>("inspect runs"); }

}  // namespace megalith
