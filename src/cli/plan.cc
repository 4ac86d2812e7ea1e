// megalith plan: the cost of a pipeline schedule, before and after it runs. With --cluster: of whole training steps
// (plan_cluster.h).
//
// The pipeline comes from training options, the times from the command line or a run's trace. The simulator
// (planner/pipeline_simulator.h) checks and times the schedule; output is a table, text or SVG.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/plan_cluster.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "kinds/kinds.h"
#include "models/families.h"
#include "parallel/pipeline/pipeline_options.h"
#include "planner/pipeline_picture.h"
#include "planner/pipeline_simulator.h"
#include "planner/pipeline_trace.h"
#include "train/batch_schedule.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr const char* kPlanUsage =
    "usage: megalith plan --pipeline_model_parallel_size P --num_layers L [--draw] [--svg_file FILE]\n"
    "                     [--pipeline_trace FILE] [--config FILE] [--option value ...]";

// A larger picture is unreadable and would take gigabytes.
constexpr int64_t kMostComputations = 2'000'000;

struct PlanOptions {
  bool draw = false;
  std::optional<std::string> svg_file, pipeline_trace;
  std::optional<int64_t> num_microbatches;
  double forward_time = 1, input_backward_time = 1, weight_backward_time = 1, transfer_time = 0;

  void visit(OptionVisitor& v) {
    v.group("Plan");
    v.field("draw", draw, "Print the schedule as text, a line a rank.");
    v.field("svg_file", svg_file, "File for the schedule as a drawing.").alias("svg");
    v.field("pipeline_trace", pipeline_trace,
            "Trace of a run (pipeline_trace.json, written by dump_pp_data). It is drawn below the simulation and "
            "compared with it, and its mean times are simulated unless times are given.");
    v.field("num_microbatches", num_microbatches,
            "Microbatches of a step. Default: the trace's number; without a trace what global_batch_size gives; else "
            "twice the number of pipeline ranks.")
        .at_least(1);
    v.field("forward_time", forward_time,
            "Time that a rank with an even share of the layers takes to bring a microbatch forward; a stage's time is "
            "in proportion to its layers.")
        .above(0);
    v.field("input_backward_time", input_backward_time, "The same time for the gradients of inputs.").above(0);
    v.field("weight_backward_time", weight_backward_time, "The same time for the gradients of weights.").above(0);
    v.field("transfer_time", transfer_time, "Time that one microbatch takes from one rank to another.").at_least(0);
  }
};

// Validated input of `plan`.
struct Plan {
  PipelinePlan pipeline;
  PipelineSchedule schedule;
  PipelineCosts costs;
  std::optional<PipelineTrace> measured;
};

bool has_times(const OptionSet& options) {
  for (const char* name : {"forward_time", "input_backward_time", "weight_backward_time", "transfer_time"}) {
    if (options.find(name)->is_set()) return true;
  }
  return false;
}

// Microbatches of a full step, as counted by training for dry_run_world_size ranks.
int64_t count_microbatches(const Config& config, const PlanOptions& own, const std::optional<PipelineTrace>& measured,
                           std::vector<UserError>& errors) {
  if (own.num_microbatches) return *own.num_microbatches;
  if (measured) return measured->shape.num_microbatches;
  const ParallelOptions& parallel = config.parallel;
  if (!config.train.global_batch_size) return 2 * parallel.pipeline_model_parallel_size;
  const int64_t model_ranks =
      parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size * parallel.context_parallel_size;
  const int64_t copies = std::max<int64_t>(config.train.dry_run_world_size / model_ranks, 1);
  std::vector<UserError> faults;
  const BatchSchedule batches(*config.train.global_batch_size, config.train.micro_batch_size, copies, /*rampup=*/{},
                              config.train.decrease_batch_size_if_needed, faults);
  for (const UserError& fault : faults) {
    errors.emplace_back(fault.message(), fault.remedy() + ", or give --num_microbatches");
  }
  return batches.num_microbatches(/*consumed=*/0);
}

// A stage's work in layers. One with only the embedding or the head counts as one layer, as in
// account_for_embedding_in_pipeline_split and its sister.
double layers_worth(std::span<const Unit> stage, const PipelinePlan& pipeline, const PipelineOptions& options) {
  const bool embedding = pipeline.counts_ends || options.account_for_embedding_in_pipeline_split;
  const bool loss = pipeline.counts_ends || options.account_for_loss_in_pipeline_split;
  int64_t layers = 0;
  for (const Unit& unit : stage) {
    layers += unit.layers_worth;
    if (unit.letter == UnitLetter::kEmbedding && embedding) ++layers;
    if (unit.letter == UnitLetter::kHead && loss) ++layers;
  }
  return static_cast<double>(std::max<int64_t>(layers, 1));
}

// Times and activations of the stages; a rank with an even share of the layers has the given times and 1.
PipelineCosts costs_of_layers(const PipelinePlan& pipeline, const PipelineOptions& options, const PlanOptions& own) {
  std::vector<double> worths;
  double all = 0;
  for (const UnitRange& stage : pipeline.stages) {
    all += worths.emplace_back(layers_worth(units_in(pipeline.units, stage), pipeline, options));
  }
  PipelineCosts costs;
  costs.transfer = own.transfer_time;
  for (const double worth : worths) {
    const double share = worth * pipeline.num_ranks / all;
    costs.stages.push_back(
        {own.forward_time * share, own.input_backward_time * share, own.weight_backward_time * share});
    costs.activations.push_back(share);
  }
  return costs;
}

Plan make_plan(const Resolved& resolved, const PlanOptions& own) {
  const Config& config = resolved.config;
  Plan plan;
  if (own.pipeline_trace) plan.measured = load_pipeline_trace(*own.pipeline_trace);
  const int64_t size = config.parallel.pipeline_model_parallel_size;
  std::vector<UserError> errors;
  if (config.model.num_all_layers() < 1) {
    errors.emplace_back("num_layers is not given", "add --num_layers, or --config FILE");
  }
  const int64_t num_microbatches = count_microbatches(config, own, plan.measured, errors);
  const std::vector<Unit> units = model_units(config.model);
  if (errors.empty()) errors = check_pipeline(config.pipeline, size, units);
  throw_if_any(errors);
  plan.pipeline = make_pipeline_plan(config.pipeline, size, units);
  const int64_t stages = std::ssize(plan.pipeline.stages);
  if (num_microbatches > kMostComputations / (3 * stages)) {
    throw UserError(fmt::format("{} microbatches in {} stages are too many to simulate", num_microbatches, stages),
                    fmt::format("give --num_microbatches of at most {}", kMostComputations / (3 * stages)));
  }
  throw_if_any(check_microbatches(plan.pipeline, num_microbatches));
  plan.schedule = plan.pipeline.schedule(narrow<int>(num_microbatches));
  plan.costs = costs_of_layers(plan.pipeline, config.pipeline, own);
  if (!plan.measured) return plan;
  const PipelineShape &ran = plan.measured->shape, &asked = plan.schedule.shape;
  if (ran != asked) {
    throw UserError(fmt::format("{} is of another pipeline: {} ranks with {} stages each and {} microbatches, not {} "
                                "with {} and {}{}",
                                *own.pipeline_trace, ran.num_ranks, ran.num_chunks, ran.num_microbatches,
                                asked.num_ranks, asked.num_chunks, asked.num_microbatches,
                                ran.order == asked.order ? "" : "; one is in a V, the other in a loop"),
                    "give the pipeline options of that run");
  }
  return plan;
}

// "E 0-3", "4-7", "m L": layer numbers, and letters for the rest. Layers of two stacks are counted separately and
// named: "E encoder 0-3", "decoder 0-1".
std::string layers_text(const PipelinePlan& pipeline, const UnitRange& stage) {
  std::set<std::string> stacks;
  for (const Unit& unit : pipeline.units) {
    if (unit.letter == UnitLetter::kLayer) stacks.insert(unit.kind);
  }
  std::vector<std::string> words;
  const Unit *first = nullptr, *last = nullptr;  // layers of one stack
  const auto finish = [&] {
    if (first == nullptr) return;
    const std::string stack = stacks.size() > 1 ? first->kind.substr(0, first->kind.find(' ')) + " " : "";
    words.push_back(first == last ? fmt::format("{}{}", stack, first->number)
                                  : fmt::format("{}{}-{}", stack, first->number, last->number));
    first = nullptr;
  };
  for (const Unit& unit : units_in(pipeline.units, stage)) {
    if (unit.letter == UnitLetter::kNone) continue;
    const bool is_layer = unit.letter == UnitLetter::kLayer;
    if (!is_layer || (first != nullptr && first->kind != unit.kind)) finish();
    if (!is_layer) {
      words.emplace_back(1, static_cast<char>(unit.letter));
      continue;
    }
    if (first == nullptr) first = &unit;
    last = &unit;
  }
  finish();
  return words.empty() ? "-" : join(words, " ");
}

// The layers of each rank's stages.
std::vector<std::string> stages_of_ranks(const Plan& plan) {
  const PipelineShape& shape = plan.schedule.shape;
  std::vector<std::string> stages;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<std::string> parts;
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      const auto stage = static_cast<size_t>(shape.stage_of(rank, chunk));
      parts.push_back(layers_text(plan.pipeline, plan.pipeline.stages[stage]));
    }
    stages.push_back(join(parts, " | "));
  }
  return stages;
}

// If several tensors travel through the pipeline: the stages each one reaches.
void print_travels(const PipelinePlan& pipeline) {
  std::vector<std::pair<std::string, std::vector<std::string>>> stages_of;  // in order of appearance
  for (size_t stage = 1; stage < pipeline.stages.size(); ++stage) {
    for (const std::string& name : boundary_before(pipeline.units, pipeline.stages[stage].first)) {
      auto found = std::ranges::find(stages_of, name, &std::pair<std::string, std::vector<std::string>>::first);
      if (found == stages_of.end()) found = stages_of.insert(found, {name, {}});
      found->second.push_back(std::to_string(stage));
    }
  }
  if (stages_of.size() < 2) return;
  std::vector<std::string> parts;
  for (const auto& [name, stages] : stages_of) parts.push_back(fmt::format("{} into {}", name, join(stages, ", ")));
  print_out("between stages, counted from 0: {}; gradients go back the same way\n", join(parts, "; "));
}

// One line per rank: stages, work and memory.
void print_table(const Plan& plan, const PipelineSimulation& simulated) {
  const PipelineShape& shape = plan.schedule.shape;
  print_out("{}: {} rank{} with {} stage{} each, {} microbatch{}, {:.4g} in all, bubble {:.1f} %\n\n",
            plan.schedule.name, shape.num_ranks, shape.num_ranks == 1 ? "" : "s", shape.num_chunks,
            shape.num_chunks == 1 ? "" : "s", shape.num_microbatches, shape.num_microbatches == 1 ? "" : "es",
            simulated.makespan, 100 * simulated.bubble_fraction());
  const std::vector<std::string> stages = stages_of_ranks(plan);
  size_t width = 6;
  for (const std::string& text : stages) width = std::max(width, text.size());
  print_out("{:>4}  {:<{}}  {:>9}  {:>8}  {:>6}  {:>11}\n", "rank", "layers", width, "busy", "bubble", "peak",
            "activations");
  for (size_t r = 0; r < stages.size(); ++r) {
    const double idle = simulated.makespan - simulated.busy[r];
    print_out("{:>4}  {:<{}}  {:>9.4g}  {:>6.1f} %  {:>6}  {:>11.4g}\n", r, stages[r], width, simulated.busy[r],
              simulated.makespan > 0 ? 100 * idle / simulated.makespan : 0, simulated.peak_live[r],
              simulated.peak_activations[r]);
  }
  const bool has_modules = count_units(plan.pipeline.units, UnitLetter::kPrediction) > 0;
  print_out(
      "\nlayers: E embedding, {}L head and loss. peak: microbatches of the rank's stages that are alive at once;\n"
      "activations: the same, where 1 is a microbatch in an even share of the layers.\n",
      has_modules ? "m prediction module, " : "");
  print_travels(plan.pipeline);
}

// Compares the run with the schedule; false if it followed another order.
bool print_comparison(const Plan& plan, const PipelineSimulation& simulated) {
  const std::vector<std::string> differences = compare_with_schedule(*plan.measured, plan.schedule);
  const double took = plan.measured->makespan();
  print_out("\nmeasured {:.4g} s, simulated {:.4g} ({:+.1f} %); ", took, simulated.makespan,
            took > 0 ? 100 * (simulated.makespan / took - 1) : 0);
  if (differences.empty()) {
    print_out("order and live activations are the schedule's on every rank\n");
    return true;
  }
  print_out("the run differs from the schedule:\n");
  for (const std::string& difference : differences) print_out("  {}\n", difference);
  return false;
}

}  // namespace

int run_plan(CommandContext& context) {
  const auto names = [&](std::string_view option) {
    return std::ranges::any_of(context.arguments, [&](const std::string& word) {
      const std::string folded = fold_name(word);
      return folded == fmt::format("__{}", option) || folded.starts_with(fmt::format("__{}=", option));
    });
  };
  const auto failures = std::ranges::find(context.arguments, "--failures");
  if (failures != context.arguments.end()) {
    context.arguments.erase(failures);
    context.command = "plan --failures";
    return run_plan_failures(context);
  }
  if (names("cluster") || names("search")) {
    context.command = "plan --cluster";
    return run_plan_cluster(context);
  }
  PlanOptions own;
  // Only unreadable options are errors: a pipeline needs neither data nor a whole model.
  Resolved resolved(all_kinds(), [&](OptionVisitor& v) { own.visit(v); });
  const Resolution resolution = resolve(*resolved.options, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context, kPlanUsage, *resolved.options);
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  if (own.svg_file) {
    auto taken = check_replaceable("svg_file", *own.svg_file, kPipelineMark, resolved.config.checkpoint.overwrite);
    if (taken) throw std::move(*taken);
  }
  Plan plan = make_plan(resolved, own);
  // A trace of another order may lack stages, and its times are not this schedule's.
  const bool follows = plan.measured && compare_with_schedule(*plan.measured, plan.schedule).empty();
  if (follows && !has_times(*resolved.options)) plan.costs.stages = measured_costs(*plan.measured).stages;
  const PipelineSimulation simulated = simulate_pipeline(plan.schedule, plan.costs);
  const PipelineTrace trace = make_trace(plan.schedule, simulated);
  const PipelineTrace* measured = plan.measured ? &*plan.measured : nullptr;
  print_table(plan, simulated);
  if (own.draw) print_out("\n{}", pipeline_text(trace, measured));
  const bool is_same = measured == nullptr || print_comparison(plan, simulated);
  if (own.svg_file) {
    write_file_atomic(*own.svg_file, pipeline_svg(trace, measured, stages_of_ranks(plan)));
    print_out("\nwrote {}\n", *own.svg_file);
  }
  return is_same ? kExitSuccess : kExitFailure;
}

std::vector<CommandOptions> plan_options() {
  return {options_of<PlanOptions, Config>("plan"), options_of<PlanClusterOptions, Config>("plan --cluster"),
          plan_failures_options()};
}

}  // namespace megalith
