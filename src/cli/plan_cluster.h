// megalith plan --cluster: how long a training step takes on a cluster and what it holds; with --search, which layout
// is fastest. And megalith plan --failures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/json.h"
#include "planner/cluster.h"
#include "train/config.h"
#include "train/dry_run.h"
#include "train/step_plan.h"

namespace megalith {

inline constexpr double kBytesOfGib = 1024.0 * 1024 * 1024;

struct PlanClusterOptions {
  std::optional<std::string> cluster;
  bool json = false, search = false, search_eight_bits = false, explain = false;
  std::optional<double> budget_tokens, dollars_per_gpu_hour;
  std::optional<std::string> pareto_file;

  void visit(OptionVisitor& v);
};

// A plan and the speeds that follow from it.
struct ClusterPlan {
  StepPlan step;
  double flops = 0, flops_seen = 0;  // of a step, all ranks
  double tokens = 0;                 // of a step

  double tokens_per_s() const { return tokens / step.step_s; }
};
// TFLOP/s of a GPU.
double tflops_of(double flops, const StepPlan& step, const Cluster& cluster);
// Times by cause, longest first, without the details of products.
std::vector<std::pair<std::string, double>> causes_of(const StepPlan& step);

// Tokens of a whole batch.
double tokens_of_step(const Resolved& run);

int run_plan_cluster(CommandContext& context);

// plan_explain.cc: what would change the answer, a faster link or another batch for instance.
struct PlanAnswer {
  double tokens_per_s = 0;
  std::string layout;  // "" if it is given
};
using PlanAnswerer = std::function<std::optional<PlanAnswer>(const Resolved&, const Cluster&)>;
struct PlanChange {
  std::string words;                 // "the network twice as fast"
  std::optional<PlanAnswer> answer;  // none: refused, or nothing fits
  double gain = 0;                   // of tokens per second
  bool is_same_layout = true;
};
std::vector<PlanChange> explain_plan(const Resolved& run, const Cluster& cluster, const PlanAnswerer& answer);
std::string changes_text(const std::vector<PlanChange>& changes);
OrderedJson changes_json(const std::vector<PlanChange>& changes);

// plan_search.cc: the fastest layouts of this model on this cluster, as a table.
void search_layouts(CommandContext& context, const Resolved& run, const Cluster& cluster,
                    const PlanClusterOptions& options);

// plan_failures.cc
int run_plan_failures(CommandContext& context);
CommandOptions plan_failures_options();

}  // namespace megalith
