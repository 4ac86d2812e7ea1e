// megalith evaluate: loss and perplexity on a data set, as one JSON object on standard output.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "data/batch_source.h"
#include "kinds/kinds.h"
#include "metrics/perplexity.h"
#include "train/inference_memory.h"
#include "train/setup.h"
#include "train/step.h"

namespace megalith {
namespace {

struct EvaluateOptions {
  std::optional<std::string> eval_split;
  std::optional<std::string> losses_file, predictions_file;

  void visit(OptionVisitor& v) {
    v.group("Evaluation of a model");
    v.field("eval_split", eval_split, "train, valid or test. Default: the first split with a weight.");
    v.field("losses_file", losses_file, "File for the per-token losses: one JSON array a sample, in order.");
    v.field("predictions_file", predictions_file,
            "File for what a classifier predicts: one JSON object a sample, in order.");
  }
};

Split chosen_split(const EvaluateOptions& options, const DataOptions& given) {
  if (options.eval_split) {
    for (const Split split : kSplits) {
      if (split_name(split) == *options.eval_split) return split;
    }
    throw UserError(fmt::format("eval_split is '{}'", *options.eval_split), "use train, valid or test");
  }
  if (given.has_split_paths()) {
    const DataOptions data = with_listed_paths(given);
    return !data.train_data_path.empty() ? Split::kTrain : !data.valid_data_path.empty() ? Split::kValid : Split::kTest;
  }
  const auto weights = parse_split(given.split.value_or("969, 30, 1"));
  for (const Split split : kSplits) {
    if (weights[static_cast<size_t>(split)] > 0) return split;
  }
  return Split::kTrain;
}

// Errors for files of rows that the task does not write, or that may not be replaced.
std::vector<UserError> check_row_files(const EvaluateOptions& options, const Resolved& run) {
  std::vector<UserError> errors;
  const TaskKind task = run.config.task.task;
  const bool predicts = task == TaskKind::kClassification;
  const bool has_tokens = !predicts && task != TaskKind::kFlowMatching && task != TaskKind::kIct;
  const auto check = [&](const char* name, const std::optional<std::string>& file, bool has, const char* remedy) {
    if (!file) return;
    if (!has) {
      errors.emplace_back(fmt::format("{} is given, and the task is {}", name, run.options->of(run.config.task.task).text()),
                          remedy);
    }
    auto taken = check_replaceable(name, *file, {}, run.config.checkpoint.overwrite);
    if (taken) errors.push_back(std::move(*taken));
  };
  check("losses_file", options.losses_file, has_tokens,
        predicts ? "a classifier has no losses of tokens: take predictions_file"
                 : "it has no losses of tokens: leave it out");
  check("predictions_file", options.predictions_file, predicts, "only a classifier predicts rows: leave it out");
  return errors;
}

// One line a sample: the losses of its tokens; or its prediction, once for each row of the set.
//   first  sample of the first row
std::string row_lines(const at::Tensor& rows, const Task& task, const BatchSource* predicted, int64_t first) {
  const at::Tensor wide = rows.to(at::kDouble).contiguous();
  const std::optional<DataSize> size = predicted != nullptr ? predicted->data_size() : std::nullopt;
  const int64_t most = size ? size->documents - first : wide.size(0);
  std::string lines;
  for (int64_t row = 0; row < std::min(wide.size(0), most); ++row) {
    const std::span values(wide.const_data_ptr<double>() + row * wide.size(1), static_cast<size_t>(wide.size(1)));
    lines += predicted != nullptr ? task.prediction(values)
                                  : dump_json(Json(std::vector<double>(values.begin(), values.end())));
    lines += "\n";
  }
  return lines;
}

int evaluate(CommandContext& context, const Session& session, const EvaluateOptions& options) {
  const Resolved& run = *session.resolved;
  const Derived& d = run.derived;
  const Groups& groups = session.groups;
  const Split split = chosen_split(options, run.config.data);
  if (options.predictions_file && split == Split::kTrain) {
    throw UserError("predictions_file has a line for each row in order, and the rows of the train split are shuffled",
                    "name the rows with --valid_data_path, and give --eval_split valid");
  }
  const int64_t num_samples = run.config.train.eval_iters * d.global_batch_size;
  DataSetup setup = make_data_setup(run);
  setup.num_samples = {0, 0, 0};
  setup.num_samples[static_cast<size_t>(split)] = num_samples;
  const std::unique_ptr<Task> task = make_task(run);
  const DataSets data = task->open_data(run.derived.data, setup, context.log);
  BatchSource* source = data.of(split);
  if (source == nullptr || num_samples <= 0) {
    throw UserError(fmt::format("nothing to evaluate: split {} is empty, or eval_iters is 0", split_name(split)),
                    "choose another eval_split, or raise eval_iters");
  }
  const BuiltModel built = build_model(run, groups, session.device);
  load_weights(run, built, groups, context.log);

  PipelinedModel model(built.view(), groups, session.device);
  const bool is_speaker = groups.world->is_first();
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  const std::optional<std::string>& file = options.losses_file ? options.losses_file : options.predictions_file;
  std::string lines;
  EvaluationSums sums;
  Progress progress(context.log, "evaluate", num_samples, "samples");
  for (int64_t done = 0; done < num_samples; done += chunk) {
    const Batch batch = source->read({.consumed_samples = done,
                                      .micro_batch_size = d.micro_batch_size,
                                      .dp_rank = groups.dp->rank(),
                                      .dp_size = groups.dp->size()});
    std::vector<at::Tensor> rows;
    sums.add(evaluate_batches(model, *task, {batch}, groups, session.device, file ? &rows : nullptr));
    if (file) {
      // Rank order is sample order.
      const at::Tensor all = groups.dp->gathered(rows[0].contiguous().to(groups.dp->device()), "evaluated rows");
      if (is_speaker) lines += row_lines(all.to(at::kCPU), *task, options.predictions_file ? source : nullptr, done);
    }
    progress.advance(chunk);
  }
  progress.finish();
  sums.losses = task->concluded(sum_over_data(sums, groups).losses);
  if (!is_speaker) return kExitSuccess;
  if (file) write_file_atomic(*file, lines);
  // The main loss; the task's other measures go by name.
  const LossSum& main = sums.losses.at(0);
  Json result{{"loss", main.mean()}};
  if (has_perplexity(main.name)) {
    result["perplexity"] = std::exp(main.mean());
    result["tokens"] = static_cast<int64_t>(main.weight);
  } else {
    result["samples"] = static_cast<int64_t>(main.weight);
  }
  for (size_t i = 1; i < sums.losses.size(); ++i) result[sums.losses[i].name] = sums.losses[i].mean();
  print_out("{}\n", dump_json(result));
  std::fflush(stdout);
  return kExitSuccess;
}

}  // namespace

int run_evaluate(CommandContext& context) {
  const Launch launch = join_launch(context);
  EvaluateOptions options;
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    return resolve_config(all_kinds(), context.config_inputs(), launch.world_size,
                          [&](OptionVisitor& visitor) { options.visit(visitor); },
                          {.opens_data = true,
                           .weights = CommandNeeds::Weights::kRequired,
                           .more_checks = [&](Resolved& run) { return check_row_files(options, run); }});
  });
  if (resolved->wants_help) {
    return print_help(context,
                      "usage: megalith evaluate --load_hf DIR|--load DIR --data_path PREFIX [--option value ...]",
                      *resolved->options);
  }
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = run_within_memory(session, launch, estimate_evaluation,
                                       [&](const MemoryEstimate&) { return evaluate(context, session, options); });
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> evaluate_options() { return {options_of<EvaluateOptions, Config>("evaluate")}; }

}  // namespace megalith
