// The layouts of an encoder and decoder: stages of either stack, tensor and sequence parallelism, copies of one table
// of the vocabulary and of the tables of positions, sharded states, recomputation.
#include <gtest/gtest.h>

#include "layouts/layout_list.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> t5_layouts() {
  LayoutList list;
  const TinyRun plain{.family = "t5"}, tied{.is_tied = true, .family = "t5"};
  const TinyRun dropped{.is_tied = true, .has_dropout = true, .num_kv_heads = 8, .family = "t5"};
  const TinyRun deep{.is_tied = true, .has_dropout = true, .num_layers = 4, .family = "t5"};
  // Tensor and sequence parallelism.
  list.add({.tp = 2, .micro_batch = 4}, tied);
  list.add({.tp = 4, .micro_batch = 2}, dropped);
  list.add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2}, dropped);
  list.add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, plain);
  // Data parallelism.
  list.add({.dp = 2, .micro_batch = 2}, dropped);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, tied);
  list.add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, dropped);
  list.add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = every_layer()}, plain);
  // Stages: the encoder's and the decoder's, one layer a stage, several chunks a rank, stages that hold parts of both.
  list.add({.pp = 2, .micro_batch = 2}, tied);
  list.add({.pp = 4, .micro_batch = 2}, dropped);
  list.add({.pp = 4, .micro_batch = 1}, plain);
  list.add({.pp = 2, .micro_batch = 2, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, dropped);
  list.add({.pp = 4, .micro_batch = 1, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, deep);
  list.add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_layout = "Et|tttt|tttL"}}, deep);
  list.add({.pp = 2, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}}, tied);
  list.add({.pp = 2, .micro_batch = 1, .pipeline = {.pp_algorithm = "zbv-formatted"}}, dropped);
  // Two ranks that hold copies of all three tables, and register them in other orders.
  list.add({.dp = 2,
            .pp = 2,
            .micro_batch = 1,
            .data_parallel = zero1(),
            .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}},
           dropped);
  list.add({.dp = 2,
            .pp = 2,
            .micro_batch = 1,
            .data_parallel = fsdp(),
            .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}},
           dropped);
  // Together.
  list.add({.tp = 2, .dp = 2, .pp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  list.add({.tp = 2,
            .dp = 2,
            .pp = 2,
            .is_sequence_parallel = true,
            .micro_batch = 1,
            .data_parallel = zero1(),
            .recompute = within_layers()},
           deep);
  list.add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = every_layer()}, dropped);
  // Recomputation; blocks of three layers, one of which would have layers of both stacks.
  list.add({.micro_batch = 2, .recompute = within_layers()}, dropped);
  list.add({.micro_batch = 4, .recompute = every_layer(3)}, deep);
  list.add({.dp = 2, .micro_batch = 2, .recompute = first_layers(3, 2)}, dropped);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = every_layer()}, dropped);
  list.add({.dp = 2, .micro_batch = 1, .data_parallel = zero1(), .recompute = within_layers()}, plain);
  // Stages of one stack each, unlike in number.
  list.add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_split_rank = 1}}, dropped);
  list.add({.pp = 3, .micro_batch = 2, .pipeline = {.encoder_pipeline_model_parallel_size = 2}}, tied);
  return list.layouts();
}

// One table of positions in two places, a bias behind a split vocabulary, norms and linears with biases.
std::vector<Layout> megatron_layouts() {
  LayoutList list;
  const TinyRun plain{.is_tied = true, .family = "megatron_t5"};
  const TinyRun dropped{.is_tied = true, .has_dropout = true, .family = "megatron_t5"};
  const TinyRun untied{.has_dropout = true, .family = "megatron_t5"};
  list.add({.tp = 2, .micro_batch = 4}, plain);
  list.add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, dropped);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = every_layer()}, untied);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = within_layers()}, dropped);
  list.add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, dropped);
  list.add({.pp = 2, .micro_batch = 2}, dropped);
  list.add({.pp = 4, .micro_batch = 2}, plain);
  list.add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_split_rank = 1}}, untied);
  list.add({.pp = 2, .micro_batch = 2, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}}, dropped);
  list.add({.pp = 2, .micro_batch = 1, .pipeline = {.pp_algorithm = "zbv-formatted"}}, plain);
  list.add({.tp = 2,
            .dp = 2,
            .pp = 2,
            .is_sequence_parallel = true,
            .micro_batch = 2,
            .data_parallel = zero1(),
            .recompute = within_layers()},
           dropped);
  return list.layouts();
}

std::vector<Layout> layouts_with_experts() {
  LayoutList list;
  const TinyRun published{.family = "t5_experts"};
  const TinyRun megatron{.is_tied = true, .has_dropout = true, .family = "megatron_t5_experts"};
  list.add({.dp = 2, .ep = 2}, published);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, megatron);
  list.add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2}, megatron);
  list.add({.tp = 2, .micro_batch = 2, .ep = 2, .etp = 1}, published);
  list.add({.pp = 2, .micro_batch = 2}, published);
  list.add({.dp = 2, .pp = 4, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, megatron);
  list.add({.dp = 2, .micro_batch = 2, .ep = 2, .dispatcher = "allgather"}, published);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, published);
  list.add({.micro_batch = 2, .recompute = every_layer()}, megatron);
  list.add({.micro_batch = 2, .recompute = {.recompute_granularity = "selective", .recompute_modules = {"moe"}}},
           published);
  list.add(
      {.tp = 2, .dp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1(), .ep = 2},
      megatron);
  return list.layouts();
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
  for (const auto& [layout, mistake] : mistakes) expect_mistake_is_seen(layout, mistake);
}

}  // namespace
}  // namespace megalith
