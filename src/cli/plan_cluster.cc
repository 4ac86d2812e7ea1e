#include "cli/plan_cluster.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "cli/help.h"
#include "cli/layout_text.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "kinds/kinds.h"
#include "train/setup.h"

namespace megalith {
namespace {

constexpr const char* kPlanClusterUsage =
    "usage: megalith plan --cluster CHIP:GPUSxNODES --config FILE [--search] [--json] [--option value ...]\n\n"
    "The options are those of megalith train. Chips are in configs/clusters.yaml.";

constexpr size_t kShapesShown = 6;

std::string share_row(const std::string& name, double seconds, double all) {
  return fmt::format("  {:<26} {:>10.4f} s  {:>5.1f} %\n", name, seconds, 100 * seconds / all);
}

std::string step_text(const StepPlan& step) {
  std::string text = fmt::format("step       {:.4g} s\n", step.step_s);
  for (const auto& [name, seconds] : causes_of(step)) text += share_row(name, seconds, step.step_s);
  std::vector<std::pair<std::string, double>> shapes(step.work.products_of.begin(), step.work.products_of.end());
  std::ranges::sort(shapes, std::greater<>(), &std::pair<std::string, double>::second);
  if (shapes.size() > kShapesShown) shapes.resize(kShapesShown);
  text += "products   the longest, by shape\n";
  for (const auto& [shape, seconds] : shapes) text += share_row(shape, seconds, step.step_s);
  return text;
}

struct Costs {
  double days = 0, gpu_hours = 0;
};
Costs costs_of(const ClusterPlan& plan, const Cluster& cluster, double tokens) {
  constexpr double kDay_s = 86400;
  const double days = tokens / plan.tokens_per_s() / kDay_s;
  return {days, days * 24 * static_cast<double>(cluster.world_size())};
}

int64_t memory_of(const Cluster& cluster) { return static_cast<int64_t>(cluster.chip.memory_gib * kBytesOfGib); }

int64_t left_on(const Cluster& cluster, const MemoryEstimate& memory) {
  return memory_left(memory.on_device(), memory_of(cluster));
}

// Weights, masters and moments of the whole model.
double checkpoint_bytes(const Resolved& run, const UnitCosts& units, const ModelNumbers& numbers) {
  const auto parameters = static_cast<double>(numbers.parameters + numbers.prediction_parameters);
  return parameters * (units.state_bytes + static_cast<double>(c10::elementSize(run.derived.dtype)));
}

void print_json(const Resolved& run, const Cluster& cluster, const ClusterPlan& plan, const UnitCosts& units,
                const DryRun& dry, const std::vector<PlanChange>& changes) {
  OrderedJson memory = OrderedJson::object(), causes = OrderedJson::object(), shapes = OrderedJson::object();
  for (const MemoryRow& row : dry.memory.rows()) memory[row.owner] = row.bytes;
  for (const auto& [name, seconds] : causes_of(plan.step)) causes[name] = seconds;
  for (const auto& [name, seconds] : plan.step.work.products_of) shapes[name] = seconds;
  const auto gpus = static_cast<double>(cluster.world_size());
  const double tflops = tflops_of(plan.flops, plan.step, cluster);
  OrderedJson all{
      {"cluster", cluster.text()},
      {"rates", cluster.file.string()},
      {"gpus", cluster.world_size()},
      {"step_s", plan.step.step_s},
      {"causes_s", std::move(causes)},
      {"products_s", std::move(shapes)},
      {"tokens_per_s", plan.tokens_per_s()},
      {"tokens_per_s_gpu", plan.tokens_per_s() / gpus},
      {"tflops_gpu", tflops},
      {"tflops_gpu_seen", tflops_of(plan.flops_seen, plan.step, cluster)},
      {"mfu", tflops / cluster.chip.tflops},
      {"memory_bytes", std::move(memory)},
      {"memory_total_bytes", dry.memory.total()},
      {"memory_at_most_bytes", upper_memory_bound(dry.memory.on_device(), cluster.chip)},
      {"memory_by_stage_bytes", dry.stage_bytes},
      {"memory_by_units_bytes", plan.step.memory_bytes()},
      {"fits", left_on(cluster, dry.memory) >= 0},
      {"checkpoint_bytes", checkpoint_bytes(run, units, dry.numbers)}};
  if (!changes.empty()) all["changes"] = changes_json(changes);
  print_out("{}", dump_json_pretty(all));
}

void print_plan(const Resolved& run, const Cluster& cluster, const ClusterPlan& plan, const UnitCosts& units,
                const DryRun& dry, const PlanClusterOptions& own) {
  const Derived& d = run.derived;
  print_out("cluster    {}, rates of {}\n", cluster.text(), cluster.file.string());
  print_out("layout     {}\n", layout_text(run, d.world_size));
  print_out("batch      {} samples of {} tokens, {} microbatch{} of {}\n", d.global_batch_size, d.seq_length,
            d.num_microbatches, d.num_microbatches == 1 ? "" : "es", d.micro_batch_size);
  print_out("{}", step_text(plan.step));
  const auto gpus = static_cast<double>(cluster.world_size());
  const double tflops = tflops_of(plan.flops, plan.step, cluster);
  print_out("speed      {} tokens/s, {} a GPU; {:.0f} TFLOP/s a GPU, {:.0f} with attention halved for causality; MFU {:.1f} %\n",
            format_count(plan.tokens_per_s()), format_count(plan.tokens_per_s() / gpus), tflops,
            tflops_of(plan.flops_seen, plan.step, cluster), 100 * tflops / cluster.chip.tflops);
  print_out("{}", memory_table(dry.memory, d.world_size));
  const int64_t left = left_on(cluster, dry.memory);
  print_out("           at most {} with contexts and fragments; {} {} of {}\n",
            format_bytes(upper_memory_bound(dry.memory.on_device(), cluster.chip)), left < 0 ? "does not fit" : "fits",
            cluster.chip.name, format_bytes(memory_of(cluster)));
  if (left < 0) {
    const SpeedOf speed_of = [&](const Resolved& other) { return planned_speed(other, cluster.chip); };
    for (const MemorySaving& saving :
         cheapest_savings(run, dry.memory, -left, /*may_add_ranks=*/true, estimate_memory, speed_of)) {
      print_out("  {} gives {}, and costs {}\n", saving.words, format_bytes(saving.bytes), saving.cost);
    }
  }
  print_out("checkpoint {}\n", format_bytes(static_cast<int64_t>(checkpoint_bytes(run, units, dry.numbers))));
  if (!own.budget_tokens) return;
  const Costs costs = costs_of(plan, cluster, *own.budget_tokens);
  print_out("budget     {} tokens take {:.1f} days, {} GPU hours", format_count(*own.budget_tokens), costs.days,
            format_count(costs.gpu_hours));
  if (own.dollars_per_gpu_hour) print_out(", ${}", format_count(costs.gpu_hours * *own.dollars_per_gpu_hour));
  print_out("\n");
}

}  // namespace

void PlanClusterOptions::visit(OptionVisitor& v) {
  v.group("Plan for a cluster");
  v.field("cluster", cluster, "Chip, GPUs of a node and nodes: h200:8x16; or a file of rates: mine.yaml:8x16.");
  v.field("search", search, "Find the ten fastest layouts instead of planning the configured one.");
  v.field("search_eight_bits", search_eight_bits, "With search: a 16-bit run's layouts in 8 bits too.");
  v.field("explain", explain, "Plan again with a faster link, more memory, another batch …, and say what each gains.");
  v.field("json", json, "Print one JSON object.");
  v.field("budget_tokens", budget_tokens, "Also print days and GPU hours for this many tokens.").above(0);
  v.field("dollars_per_gpu_hour", dollars_per_gpu_hour, "Also print what budget_tokens cost.").above(0);
  v.field("pareto_file", pareto_file, "With search: SVG of step time against memory.");
}

double tokens_of_step(const Resolved& run) {
  return static_cast<double>(run.derived.global_batch_size * run.kind().tokens_per_sample(run));
}

double tflops_of(double flops, const StepPlan& step, const Cluster& cluster) {
  return flops / step.step_s / static_cast<double>(cluster.world_size()) / 1e12;
}

std::vector<std::pair<std::string, double>> causes_of(const StepPlan& step) {
  std::vector<std::pair<std::string, double>> causes = {{"products", step.work.products},
                                                        {"products in 8 bits", step.work.fp8_products},
                                                        {"attention", step.work.attention},
                                                        {"memory-bound operators", step.work.memory_bound},
                                                        {"bubble", step.bubble_s},
                                                        {"optimizer", step.optimizer_s},
                                                        {"host", step.work.host}};
  for (const auto& [name, seconds] : step.work.exposed) causes.emplace_back(name, seconds);
  std::erase_if(causes, [&](const auto& cause) { return cause.second < 1e-6 * step.step_s; });
  std::ranges::sort(causes, std::greater<>(), &std::pair<std::string, double>::second);
  return causes;
}

int run_plan_cluster(CommandContext& context) {
  PlanClusterOptions own;
  const auto extra = [&](OptionVisitor& v) { own.visit(v); };
  ConfigInputs inputs = context.config_inputs();
  int64_t model_ranks = 1;
  {
    // The world's size is needed to resolve.
    Resolved probe(all_kinds(), extra);
    if (resolve(*probe.options, inputs).wants_help) return print_help(context, kPlanClusterUsage, *probe.options);
    const ParallelOptions& parallel = probe.config.parallel;
    model_ranks = parallel.tensor_model_parallel_size * parallel.context_parallel_size *
                  parallel.pipeline_model_parallel_size;
  }
  if (!own.cluster) throw UserError("--cluster has no value", "write --cluster h200:8x16");
  const Cluster cluster = read_cluster(*own.cluster, context.config_root);
  // A search replaces the layout, which need not suit the whole cluster.
  const int64_t world_size = own.search ? model_ranks : cluster.world_size();
  own = {};  // parsed again
  inputs.arguments.insert(inputs.arguments.end(), {"--dry_run", "true"});
  const std::unique_ptr<Resolved> run =
      resolve_config(all_kinds(), inputs, world_size, extra, {.weights = CommandNeeds::Weights::kOptional});
  for (const std::string& note : run->notes) context.log.note("{}", note);
  if (run->derived.dtype == at::kFloat && cluster.chip.fp32_tflops > 0) {
    context.log.note("products are in fp32, a {:.0f}th as fast: bf16 is not on", cluster.chip.tflops / cluster.chip.fp32_tflops);
  }
  if (own.search) {
    search_layouts(context, *run, cluster, own);
    return kExitSuccess;
  }
  const UnitCosts units = measure_units(*run);
  const DryRun dry = make_dry_run(*run);
  ClusterPlan plan{.step = plan_step(*run, units, cluster),
                   .flops = dry.numbers.flops_per_step,
                   .flops_seen = dry.numbers.flops_per_step_seen};
  plan.tokens = tokens_of_step(*run);
  const auto answer = [&](const Resolved& other, const Cluster& on) -> std::optional<PlanAnswer> {
    return PlanAnswer{tokens_of_step(other) / plan_step(other, units, on).step_s, ""};
  };
  const std::vector<PlanChange> changes = own.explain ? explain_plan(*run, cluster, answer) : std::vector<PlanChange>{};
  if (own.json) {
    print_json(*run, cluster, plan, units, dry, changes);
  } else {
    print_plan(*run, cluster, plan, units, dry, own);
    print_out("{}", changes_text(changes));
  }
  return kExitSuccess;
}

}  // namespace megalith
