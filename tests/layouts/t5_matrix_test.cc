// The layouts of an encoder and decoder: stages of either stack, tensor and sequence parallelism, copies of one table
// of the vocabulary and of the tables of positions, sharded states, recomputation.
#include <gtest/gtest.h>

#include "layouts/layout.h"
#include "layouts/mutant_group.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> t5_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun plain{.family = "t5"}, tied{.is_tied = true, .family = "t5"};
  const TinyRun dropped{.is_tied = true, .has_dropout = true, .num_kv_heads = 8, .family = "t5"};
  const TinyRun deep{.is_tied = true, .has_dropout = true, .num_layers = 4, .family = "t5"};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions in_threes{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 3};
  const RecomputeOptions offloaded{.recompute_granularity = "full",
                                   .recompute_method = "block",
                                   .recompute_num_layers = 3,
                                   .cpu_offloading_num_layers = 2};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};
  // Tensor and sequence parallelism.
  add({.tp = 2, .micro_batch = 4}, tied);
  add({.tp = 4, .micro_batch = 2}, dropped);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2}, dropped);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, plain);
  // Data parallelism.
  add({.dp = 2, .micro_batch = 2}, dropped);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, tied);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, dropped);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = full}, plain);
  // Stages: the encoder's and the decoder's, one layer a stage, several chunks a rank, stages that hold parts of both.
  add({.pp = 2, .micro_batch = 2}, tied);
  add({.pp = 4, .micro_batch = 2}, dropped);
  add({.pp = 4, .micro_batch = 1}, plain);
  add({.pp = 2, .micro_batch = 2, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, dropped);
  add({.pp = 4, .micro_batch = 1, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, deep);
  add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_layout = "Et|tttt|tttL"}}, deep);
  add({.pp = 2, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}}, tied);
  add({.pp = 2, .micro_batch = 1, .pipeline = {.pp_algorithm = "zbv-formatted"}}, dropped);
  // Two ranks that hold copies of all three tables, and register them in other orders.
  add({.dp = 2,
       .pp = 2,
       .micro_batch = 1,
       .data_parallel = zero1(),
       .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}},
      dropped);
  // Together.
  add({.tp = 2, .dp = 2, .pp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  add({.tp = 2,
       .dp = 2,
       .pp = 2,
       .is_sequence_parallel = true,
       .micro_batch = 1,
       .data_parallel = zero1(),
       .recompute = selective},
      deep);
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = full}, dropped);
  // Recomputation; blocks of three layers, one of which would have layers of both stacks.
  add({.micro_batch = 2, .recompute = selective}, dropped);
  add({.micro_batch = 4, .recompute = in_threes}, deep);
  add({.dp = 2, .micro_batch = 2, .recompute = offloaded}, dropped);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = full}, dropped);
  add({.dp = 2, .micro_batch = 1, .data_parallel = zero1(), .recompute = selective}, plain);
  // Stages of one stack each, unlike in number.
  add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_split_rank = 1}}, dropped);
  add({.pp = 3, .micro_batch = 2, .pipeline = {.encoder_pipeline_model_parallel_size = 2}}, tied);
  return list;
}

const RecomputeOptions kEveryLayer{
    .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
const RecomputeOptions kWithinLayers{.recompute_granularity = "selective",
                                     .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};

// One table of positions in two places, a bias behind a split vocabulary, norms and linears with biases.
std::vector<Layout> megatron_layouts() {
  std::vector<Layout> list;
  const TinyRun plain{.is_tied = true, .family = "megatron_t5"};
  const TinyRun dropped{.is_tied = true, .has_dropout = true, .family = "megatron_t5"};
  const TinyRun untied{.has_dropout = true, .family = "megatron_t5"};
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  add({.tp = 2, .micro_batch = 4}, plain);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, dropped);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = kEveryLayer}, untied);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = kWithinLayers}, dropped);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, dropped);
  add({.pp = 2, .micro_batch = 2}, dropped);
  add({.pp = 4, .micro_batch = 2}, plain);
  add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_split_rank = 1}}, untied);
  add({.pp = 2, .micro_batch = 2, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, dropped);
  add({.pp = 2, .micro_batch = 1, .pipeline = {.pp_algorithm = "zbv-formatted"}}, plain);
  add({.tp = 2,
       .dp = 2,
       .pp = 2,
       .is_sequence_parallel = true,
       .micro_batch = 2,
       .data_parallel = zero1(),
       .recompute = kWithinLayers},
      dropped);
  return list;
}

std::vector<Layout> layouts_with_experts() {
  std::vector<Layout> list;
  const TinyRun published{.family = "t5_experts"};
  const TinyRun megatron{.is_tied = true, .has_dropout = true, .family = "megatron_t5_experts"};
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  add({.dp = 2, .ep = 2}, published);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, megatron);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2}, megatron);
  add({.tp = 2, .micro_batch = 2, .ep = 2, .etp = 1}, published);
  add({.pp = 2, .micro_batch = 2}, published);
  add({.dp = 2, .pp = 4, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, megatron);
  add({.dp = 2, .micro_batch = 2, .ep = 2, .dispatcher = "allgather"}, published);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, published);
  add({.micro_batch = 2, .recompute = kEveryLayer}, megatron);
  add({.micro_batch = 2, .recompute = {.recompute_granularity = "selective", .recompute_modules = {"moe"}}}, published);
  add({.tp = 2, .dp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1(), .ep = 2},
      megatron);
  return list;
}

TEST(T5Layouts, TrainAsOneRankInFloat64) { expect_as_one_rank_in_float64(t5_layouts()); }
TEST(T5Layouts, TrainAsOneRankInFloat32) { expect_as_one_rank_in_float32(t5_layouts()); }
TEST(T5Layouts, TrainMegatronsAsOneRankInFloat64) { expect_as_one_rank_in_float64(megatron_layouts()); }
TEST(T5Layouts, TrainMegatronsAsOneRankInFloat32) { expect_as_one_rank_in_float32(megatron_layouts()); }
TEST(T5Layouts, TrainExpertsAsOneRankInFloat64) { expect_as_one_rank_in_float64(layouts_with_experts()); }

using Kind = CollectiveKind;
using How = WrongCollective::How;

// Placements of the parameters with this in their names, as they would be with the mistake.
Mistake wrong_placement(std::string name, std::string parameter,
                        std::function<void(Placement& placement, const Groups& groups)> change) {
  const auto change_model = [parameter = std::move(parameter), change = std::move(change)](Model& model,
                                                                                           const Groups& groups) {
    model.for_each_parameter([&](Parameter& found) {
      if (found.name().find(parameter) != std::string::npos) {
        change(const_cast<Placement&>(found.placement()), groups);
      }
    });
  };
  return {.name = std::move(name), .hooks = {.change_model = change_model}};
}

Mistake wrong_exchange(std::string name, const WrongCollective& wrong, int only_stage = -1) {
  return {.name = std::move(name), .hooks = {.change_groups = [=](Groups& groups) {
                                     if (only_stage < 0 || groups.pp->rank() == only_stage)
                                       replace_groups(groups, wrong);
                                   }}};
}

AxisSet only(Axis axis) {
  AxisSet axes;
  axes.insert(axis);
  return axes;
}

// Each is tried where it would do harm, and must be seen far above the tolerance.
TEST(T5Layouts, SeeMistakesOfAnEncoderAndDecoder) {
  const TinyRun tied{.is_tied = true, .family = "t5"};
  const Layout tensor{.tp = 2, .micro_batch = 4, .task = tied};
  const Layout sequence{.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .task = tied};
  // encoder 0 | encoder 1, norm | decoder 0 | decoder 1, head
  const Layout stages{.pp = 4, .micro_batch = 2, .task = tied};
  const Layout copies{.dp = 2, .micro_batch = 4, .task = tied};
  const std::string keys = "EncDecAttention.kv_proj.weight", positions = "relative_attention_bias";
  // Rows of the memory of two sequences of eight tokens; the decoder's have six.
  const auto is_memory = [](const at::Tensor& x, ReduceOp) { return x.dim() == 2 && x.size(0) == 16; };
  const std::vector<std::pair<Layout, Mistake>> mistakes = {
      {tensor, wrong_exchange("the memory's gradient not summed over tp", {Kind::kAllReduce, keys})},
      {sequence, wrong_exchange("the memory's gradient not summed and scattered", {Kind::kReduceScatter, keys})},
      {sequence, wrong_exchange("the memory gathered in the wrong order", {Kind::kAllGather, keys, How::kReverse})},
      {sequence, wrong_exchange("own memory in place of the others'", {Kind::kAllGather, keys})},
      {stages, wrong_exchange("the memory's gradient of one decoder stage only",
                              {Kind::kSendReceive, "gradient of the inputs of stage 3", How::kZero, is_memory}, 2)},
      {stages, wrong_exchange("the last stage does not get the memory",
                              {Kind::kSendReceive, "inputs of stage 3", How::kZero, is_memory}, 3)},
      {tensor, wrong_placement("positions of another rank's heads", positions,
                               [](Placement& placement, const Groups& groups) {
                                 Piece& piece = placement.pieces[0];
                                 piece.canonical.offset[1] = (1 - groups.tp->rank()) * piece.canonical.extent[1];
                               })},
      {stages, wrong_placement("positions not summed over the stages of a stack", positions,
                               [](Placement& placement, const Groups&) { placement.partial_axes = only(Axis::kDp); })},
      {stages, wrong_placement("positions counted in the norm by each stage", positions,
                               [](Placement& placement, const Groups&) { placement.replica_axes = only(Axis::kDp); })},
      {copies, wrong_placement("positions not summed over the ranks", positions,
                               [](Placement& placement, const Groups&) { placement.partial_axes = {}; })},
      {stages, wrong_placement("the vocabulary's table not summed over both stacks", "shared.weight",
                               [](Placement& placement, const Groups&) { placement.partial_axes = only(Axis::kDp); })},
  };
  for (const auto& [layout, mistake] : mistakes) {
    const RankOutcome& expected = single_rank_outcome(layout, {}, 2);
    double worst = 1;
    try {
      worst = compare(layout, run_layout(layout, {}, 2, &mistake), expected, 1e-9).worst;
    } catch (const std::exception& error) {
      std::printf("  %s: %s\n", mistake.name.c_str(), error.what());
    }
    EXPECT_GT(worst, 1e-5) << mistake.name;
  }
}

}  // namespace
}  // namespace megalith
