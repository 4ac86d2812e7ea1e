// Eight-bit products over kinds of layouts against a single rank. Scales are those of whole tensors, so every layout
// rounds the same numbers to the same eight bits, and the bounds are those of runs without. Delayed scales are of all
// ranks' samples; blocks are those of a rank, so only layouts that cut no tensor are compared.
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> fp8_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task, const std::string& format = "hybrid") {
    if (layout.cp > 1) task.sequence = 8;
    task.fp8_format = format;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun plain{}, biases{.is_tied = true, .has_dropout = true, .has_documents = true, .has_qkv_bias = true};
  const TinyRun deepseek{.family = "deepseek"}, mixtral{.family = "mixtral"};
  const TinyRun flux{.family = "flux", .image_size = 64, .text_length = 8};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp", "mlp_act"}};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  add({.tp = 2, .micro_batch = 4}, plain);
  add({.tp = 4, .micro_batch = 4}, biases, "e4m3");
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, biases);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2, .recompute = selective}, plain);
  add({.pp = 2, .micro_batch = 2}, biases);
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}},
      plain);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, plain);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1(), .recompute = full},
      biases);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, plain);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp()}, biases);
  add({.cp = 2, .micro_batch = 4}, plain);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 4}, biases);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, deepseek);
  add({.tp = 2, .micro_batch = 4}, mixtral);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, flux);
  add({.pp = 2, .micro_batch = 2, .recompute = selective}, flux);
  return list;
}

TEST(Fp8Matrix, EveryLayoutTrainsAsOneRankInFloat64) { expect_as_one_rank_in_float64(fp8_layouts()); }

TEST(Fp8Matrix, DelayedScalesAreThoseOfOneRank) {
  const TinyRun plain{.fp8_format = "hybrid", .fp8_recipe = "delayed"};
  TinyRun biases = plain, long_rows = plain, mixtral = plain;
  biases.is_tied = biases.has_dropout = biases.has_documents = biases.has_qkv_bias = true;
  long_rows.sequence = 8;
  mixtral.family = "mixtral";
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp", "mlp_act"}};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  expect_as_one_rank_in_float64({
      {.tp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = biases, .recompute = selective},
      {.pp = 2, .micro_batch = 2, .task = biases, .recompute = full},
      {.pp = 2, .micro_batch = 2, .task = plain, .pipeline = {.pp_algorithm = "zero-bubble"}},
      {.dp = 2, .micro_batch = 2, .task = plain, .data_parallel = zero1()},
      {.dp = 2, .micro_batch = 1, .task = plain, .data_parallel = fsdp()},
      {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 1, .task = biases, .recompute = full},
      {.cp = 2, .micro_batch = 2, .task = long_rows},
      {.tp = 2, .micro_batch = 2, .task = mixtral},
  });
}

TEST(Fp8Matrix, BlocksAreThoseOfOneRankWhereNoneIsCut) {
  const TinyRun plain{.fp8_format = "hybrid", .fp8_recipe = "blockwise"};
  TinyRun mixtral = plain;
  mixtral.family = "mixtral";
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp", "mlp_act"}};
  expect_as_one_rank_in_float64({
      {.micro_batch = 4, .task = plain, .recompute = selective},
      {.pp = 2, .micro_batch = 2, .task = plain, .pipeline = {.pp_algorithm = "zero-bubble"}},
      {.dp = 2, .micro_batch = 2, .task = plain, .data_parallel = fsdp()},
      {.pp = 2, .micro_batch = 2, .task = mixtral},
  });
}

// The bound of the test above holds because eight-bit rounding is the same, not because there is none.
TEST(Fp8Matrix, EightBitsAreFeltInTheLosses) {
  const Layout plain{.micro_batch = 4};
  Layout rounded = plain;
  rounded.task.fp8_format = "hybrid";
  const double with = run_layout(rounded, {}, 1)[0].losses.at(0), without = run_layout(plain, {}, 1)[0].losses.at(0);
  EXPECT_GT(std::abs(with - without), 1e-6 * without);
  EXPECT_LT(std::abs(with - without), 0.05 * without);
}

}  // namespace
}  // namespace megalith
