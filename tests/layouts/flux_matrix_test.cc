// The layouts of FLUX: tensor parallelism, whose modulations every rank computes a part of, sequence parallelism, where
// a rank has a share of every sample, stages that hold blocks of both kinds, sharded states, recomputation.
#include <gtest/gtest.h>

#include "layouts/layout.h"
#include "layouts/mutant_group.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> flux_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun guided{.family = "flux"}, unguided{.is_tied = true, .family = "flux"};
  const TinyRun shared{.family = "flux", .image_size = 64, .text_length = 8};
  const TinyRun adapted{.family = "flux",
                        .adapters = {"all-linear"},
                        .adapter_dropout = 0.2,
                        .image_size = 64,
                        .text_length = 8};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions in_threes{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 3};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp"}};
  add({.tp = 2, .micro_batch = 4}, guided);
  add({.tp = 4, .micro_batch = 2}, unguided);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, guided);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, guided);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = full}, unguided);
  add({.pp = 2, .micro_batch = 2}, guided);
  add({.pp = 4, .micro_batch = 1}, unguided);
  add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_layout = "E|ttt|tL"}}, guided);
  add({.pp = 2, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}}, guided);
  add({.tp = 2, .dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = zero1(), .recompute = selective}, guided);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp()}, guided);
  add({.micro_batch = 4, .recompute = selective}, guided);
  add({.micro_batch = 2, .recompute = in_threes}, unguided);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, shared);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2, .recompute = selective}, shared);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = fsdp(), .recompute = full},
      shared);
  add({.tp = 2,
       .pp = 3,
       .is_sequence_parallel = true,
       .micro_batch = 2,
       .data_parallel = zero1(),
       .pipeline = {.pipeline_model_parallel_layout = "E|ttt|tL"}},
      shared);
  add({.tp = 2, .micro_batch = 4}, adapted);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, adapted);
  return list;
}

TEST(FluxLayouts, TrainAsOneRankInFloat64) { expect_as_one_rank_in_float64(flux_layouts()); }
TEST(FluxLayouts, TrainAsOneRankInFloat32) { expect_as_one_rank_in_float32(flux_layouts()); }

}  // namespace
}  // namespace megalith
