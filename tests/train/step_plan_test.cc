// A step's plan against what the program says of the same run elsewhere: its FLOPs and its memory.
#include "train/step_plan.h"

#include <gtest/gtest.h>

#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "train/alter_run.h"
#include "train/dry_run.h"
#include "train/layout_search.h"
#include "train/setup.h"

namespace megalith {
namespace {

using PlanWords = std::vector<std::string>;


std::unique_ptr<Resolved> resolve_planned(const PlanWords& more, int64_t world_size) {
  ConfigInputs inputs;
  inputs.arguments = {
      "--num_layers=8",        "--hidden_size=128", "--num_attention_heads=4",       "--vocab_size=512",
      "--seq_length=256",      "--swiglu",          "--normalization=RMSNorm",       "--position_embedding_type=rope",
      "--disable_bias_linear", "--mock_data",       "--max_position_embeddings=256", "--global_batch_size=16",
      "--bf16",                "--dry_run",         "--hidden_dropout=0",            "--attention_dropout=0"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, world_size);
}

struct PlanCase {
  const char* name;
  int64_t world_size;
  PlanWords words;
};

class EveryPlan : public ::testing::TestWithParam<PlanCase> {};

double flops_of(const WorkTrace& trace, bool of_attention) {
  double flops = 0;
  for (const TracedWork& work : trace) {
    if ((work.kind == WorkKind::kAttention) == of_attention) flops += work.flops;
  }
  return flops;
}

// Summed over units and ranks, the trace is what the start-up report counts. Its attention counts two products of
// backward for one of forward, and kernels compute the scores again: 5 / 4 of that.
TEST_P(EveryPlan, TracesTheFlopsThatTheReportCounts) {
  const auto run = resolve_planned(GetParam().words, GetParam().world_size);
  const UnitCosts units = measure_units(*run);
  double flops = 0;
  for (size_t unit = 0; unit < units.kind_of.size(); ++unit) {
    const UnitCost& cost = units.of(static_cast<int64_t>(unit));
    // Half of the pairs are seen, of all and of those that run.
    const double left_out = cost.seen_share / 0.5;
    flops += flops_of(cost.forward, false) + flops_of(cost.backward, false) +
             left_out * (flops_of(cost.forward, true) + 0.8 * flops_of(cost.backward, true));
  }
  const auto& parallel = run->config.parallel;
  const double ranks = static_cast<double>(parallel.tensor_model_parallel_size * parallel.context_parallel_size);
  const double microbatches = static_cast<double>(run->derived.num_microbatches * run->derived.data_parallel_size);
  const Groups groups(Mesh::from_options(parallel, run->derived.world_size), 0, traced_group_factory(0));
  const double counted = count_model(build_model(*run, groups, at::kMeta), *run).flops_per_step;
  EXPECT_NEAR(flops * ranks * microbatches / counted, 1, 1e-3);
}

// Units' memory is that of the dry run, whose stages are built whole.
TEST_P(EveryPlan, HoldsWhatTheDryRunHolds) {
  const auto run = resolve_planned(GetParam().words, GetParam().world_size);
  const Cluster cluster = read_cluster("h200:8x16", test::source_dir() / "configs");
  const StepPlan plan = plan_step(*run, measure_units(*run), cluster);
  const MemoryEstimate memory = estimate_largest(estimate_stages(*run));
  const auto said = static_cast<double>(memory.total() - memory.data);
  EXPECT_NEAR(static_cast<double>(plan.memory_bytes()) / said, 1, 0.1) << memory.text();
  EXPECT_LT(said, static_cast<double>(upper_memory_bound(plan.memory_bytes())));
  EXPECT_GT(plan.step_s, 0);
  const StepPlan bounds = plan_bounds(*run, measure_units(*run), cluster);
  EXPECT_LE(bounds.step_s, plan.step_s * (1 + 1e-9));
  // Causes are the whole step.
  EXPECT_NEAR(plan.work.total() + plan.bubble_s + plan.optimizer_s, plan.step_s, 0.02 * plan.step_s);
}

const PlanWords kExperts = {"--num_experts=4", "--moe_router_topk=2", "--moe_ffn_hidden_size=128",
                            "--expert_model_parallel_size=2", "--moe_token_dispatcher_type=alltoall"};

INSTANTIATE_TEST_SUITE_P(
    StepPlan, EveryPlan,
    ::testing::Values(PlanCase{"one", 1, {}}, PlanCase{"data", 4, {"--use_distributed_optimizer"}},
                    PlanCase{"fsdp", 4, {"--use_torch_fsdp2"}},
                    PlanCase{"tensor", 2, {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
                    PlanCase{"context", 2, {"--context_parallel_size=2"}},
                    PlanCase{"pipeline", 4, {"--pipeline_model_parallel_size=4"}},
                    PlanCase{"interleaved", 2,
                             {"--pipeline_model_parallel_size=2", "--num_virtual_stages_per_pipeline_rank=2"}},
                    PlanCase{"zero_bubble", 2, {"--pipeline_model_parallel_size=2", "--pp_algorithm=zero-bubble"}},
                    PlanCase{"fsdp_pipeline", 4, {"--use_torch_fsdp2", "--pipeline_model_parallel_size=2"}},
                    PlanCase{"state_on_host", 2, {"--use_distributed_optimizer", "--optimizer_cpu_offload"}},
                    PlanCase{"inputs_on_host", 1,
                             {"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1",
                              "--cpu_offloading_num_layers=8"}},
                    PlanCase{"modules", 2, {"--mtp_num_layers=1", "--pipeline_model_parallel_size=2",
                                            "--pipeline_model_parallel_layout=Et*5|t*3mL"}},
                    PlanCase{"experts", 2, kExperts}),
    [](const auto& info) { return info.param.name; });

// Nothing is added to a simulation by leaving its repeating middle out.
TEST(StepPlan, ManyMicrobatchesAreSimulatedExactly) {
  const Cluster cluster = read_cluster("h200:8", test::source_dir() / "configs");
  const auto seconds = [&](int64_t batch) {
    const auto run = resolve_planned({"--pipeline_model_parallel_size=4", fmt::format("--global_batch_size={}", batch)}, 4);
    return plan_step(*run, measure_units(*run), cluster).step_s;
  };
  // 24 are simulated whole; the steady state is linear from there on.
  const double four = seconds(24) - seconds(20);
  EXPECT_NEAR(seconds(240) - seconds(24), four * (240 - 24) / 4, 1e-6 * seconds(240));
}

// Ranks that wait leave their processor to others, so that a bubble costs nothing while others can work.
TEST(StepPlan, RanksThatShareProcessorsTakeTurns) {
  const auto run = resolve_planned({"--pipeline_model_parallel_size=4", "--global_batch_size=4"}, 4);
  const UnitCosts units = measure_units(*run);
  Cluster cluster = read_cluster("h200:8", test::source_dir() / "configs");
  const StepPlan alone = plan_step(*run, units, cluster);
  cluster.chip.ranks_per_core = 2;
  const StepPlan two = plan_step(*run, units, cluster);
  cluster.chip.ranks_per_core = 100;
  const StepPlan many = plan_step(*run, units, cluster);
  EXPECT_GT(alone.bubble_s, 0.3 * alone.step_s);
  EXPECT_LT(two.step_s, alone.step_s);
  EXPECT_EQ(many.bubble_s, 0);
  for (const StepPlan* plan : {&alone, &two, &many}) {
    EXPECT_NEAR(plan->work.total() + plan->bubble_s + plan->optimizer_s, plan->step_s, 0.02 * plan->step_s);
  }
}

// A host's memory is slower than a device's, and takes its state.
TEST(StepPlan, OffloadedStateIsTheHosts) {
  const Cluster cluster = read_cluster("h200:8", test::source_dir() / "configs");
  const auto planned = [&](const PlanWords& words) {
    const auto run = resolve_planned(words, 2);
    return plan_step(*run, measure_units(*run), cluster);
  };
  const StepPlan here = planned({}), there = planned({"--optimizer_cpu_offload"});
  EXPECT_EQ(here.host_bytes, 0);
  EXPECT_EQ(here.state_bytes, there.state_bytes + there.host_bytes);
  EXPECT_GT(there.host_bytes, there.state_bytes);
  EXPECT_GT(there.optimizer_s, 10 * here.optimizer_s);
}

// Layouts that bounds leave out are not among the fastest, and a found layout takes as long as a run with its options.
TEST(LayoutSearch, PruningLosesNothing) {
  const auto run = resolve_planned({"--global_batch_size=8", "--num_experts=2", "--moe_router_topk=2"}, 1);
  const Cluster cluster = read_cluster("h200:4", test::source_dir() / "configs");
  KnownUnits units;
  const FoundLayouts some = find_layouts(*run, cluster, units);
  const FoundLayouts all = find_layouts(*run, cluster, units, {.num_shown = 5000});
  ASSERT_EQ(some.best.size(), 10u);
  EXPECT_LT(some.num_simulated, all.num_simulated);
  for (size_t i = 0; i < some.best.size(); ++i) {
    EXPECT_EQ(some.best[i].plan.step_s, all.best[i].plan.step_s) << i;
    std::vector<UserError> errors;
    const auto alone = alter_run(
        *run,
        [&](Resolved& changed) {
          for (const auto& [name, value] : settings_of(some.best[i].layout, *run)) {
            changed.options->find(name)->set(value, {OptionLayer::kCommandLine, "test"});
          }
        },
        cluster.world_size(), errors);
    const StepPlan plan = plan_step(*alone, measure_units(*alone), cluster);
    EXPECT_NEAR(plan.step_s / some.best[i].plan.step_s, 1, 1e-9) << some.best[i].layout.text(true);
    EXPECT_EQ(plan.memory_bytes(), some.best[i].plan.memory_bytes());
  }
}

TEST(LayoutSearch, SuggestsWhatIsMuchFaster) {
  const auto configs = test::source_dir() / "configs";
  const PlanWords slow = {"--tensor_model_parallel_size=4", "--sequence_parallel", "--hidden_size=1024",
                          "--global_batch_size=64"};
  PlanWords quiet = slow;
  quiet.push_back("--suggest_layout=false");
  const std::string text = suggested_layout(*resolve_planned(slow, 8), "H100", configs);
  EXPECT_NE(text.find("times as fast on 8 h100 in 1 node of 8: --tensor_model_parallel_size 1"), std::string::npos) << text;
  EXPECT_EQ(suggested_layout(*resolve_planned(quiet, 8), "H100", configs), "");
  EXPECT_EQ(suggested_layout(*resolve_planned(slow, 8), "no such GPU", configs), "");
  EXPECT_EQ(suggested_layout(*resolve_planned({"--hidden_size=1024"}, 1), "H100", configs), "");
}

}  // namespace
}  // namespace megalith
