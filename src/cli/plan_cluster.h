// megalith plan --cluster: how long a training step takes on a cluster and what it holds; with --search, which layout
// is fastest. And megalith plan --failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "planner/cluster.h"
#include "train/config.h"
#include "train/dry_run.h"
#include "train/step_plan.h"

namespace megalith {

inline constexpr double kBytesOfGib = 1024.0 * 1024 * 1024;

struct PlanClusterOptions {
  std::optional<std::string> cluster;
  bool json = false, search = false;
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

int run_plan_cluster(CommandContext& context);

// plan_search.cc: the fastest layouts of this model on this cluster, as a table.
void search_layouts(CommandContext& context, const Resolved& run, const Cluster& cluster,
                    const PlanClusterOptions& options);

// plan_failures.cc
int run_plan_failures(CommandContext& context);
CommandOptions plan_failures_options();

}  // namespace megalith
