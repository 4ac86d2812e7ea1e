// The layout matrix: every layout gives the single rank's loss, gradients, norms and parameters.
#include <gtest/gtest.h>

#include <algorithm>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

// Each dimension alone, pairs and triples; ranks 2 to 8.
std::vector<Layout> layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const Task& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const Task plain, tied{.is_tied = true}, dropout{.has_dropout = true};
  const Task all{.is_tied = true, .has_dropout = true, .has_documents = true, .has_qkv_bias = true};
  const Task qwen{.has_documents = true, .has_qkv_bias = true};
  const Task twelve{.has_dropout = true, .global_batch = 12, .sequence = 7};
  const Task many_heads{.has_dropout = true, .has_qkv_bias = true, .num_kv_heads = 8};

  // One rank: accumulation alone.
  add({.micro_batch = 1}, plain);
  add({.micro_batch = 2}, all);
  add({.micro_batch = 3}, twelve);
  // Tensor parallelism alone.
  add({.tp = 2, .micro_batch = 8}, plain);
  add({.tp = 4, .micro_batch = 8}, tied);
  add({.tp = 8, .micro_batch = 8}, many_heads);
  add({.tp = 2, .micro_batch = 8}, dropout);
  add({.tp = 2, .micro_batch = 3}, twelve);
  add({.tp = 4, .micro_batch = 2}, qwen);
  // With sequence parallelism: shards begin and end within samples.
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 8}, plain);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, tied);
  add({.tp = 8, .is_sequence_parallel = true, .micro_batch = 4}, many_heads);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 1}, dropout);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 6}, twelve);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4}, qwen);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, all);
  // Data parallelism alone.
  add({.dp = 2, .micro_batch = 4}, plain);
  add({.dp = 4, .micro_batch = 1}, tied);
  add({.dp = 8, .micro_batch = 1}, dropout);
  add({.dp = 3, .micro_batch = 2}, twelve);
  add({.dp = 4, .micro_batch = 2}, qwen);
  // Pairs and triples of tensor, data and sequence parallelism and accumulation.
  add({.tp = 2, .dp = 2, .micro_batch = 4}, plain);
  add({.tp = 2, .dp = 2, .micro_batch = 1}, tied);
  add({.tp = 2, .dp = 3, .micro_batch = 2}, twelve);
  add({.tp = 4, .dp = 2, .micro_batch = 1}, all);
  add({.tp = 2, .dp = 4, .micro_batch = 2}, qwen);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 4}, plain);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 1}, all);
  add({.tp = 2, .dp = 4, .is_sequence_parallel = true, .micro_batch = 1}, tied);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, dropout);
  add({.tp = 2, .dp = 3, .is_sequence_parallel = true, .micro_batch = 2}, twelve);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, qwen);
  // Sharded optimizer state, sharded parameters, copies of the shards.
  add({.dp = 4, .micro_batch = 1, .data_parallel = zero1()}, plain);
  add({.dp = 3, .micro_batch = 2, .data_parallel = zero1()}, twelve);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1()}, all);
  add({.tp = 2, .dp = 4, .is_sequence_parallel = true, .micro_batch = 1, .data_parallel = zero1()}, qwen);
  add({.dp = 4, .dp_replicate = 2, .micro_batch = 2, .data_parallel = zero1()}, tied);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, plain);
  add({.dp = 3, .micro_batch = 2, .data_parallel = fsdp()}, twelve);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, all);
  add({.tp = 2, .dp = 4, .is_sequence_parallel = true, .micro_batch = 1, .data_parallel = fsdp()}, qwen);
  add({.dp = 4, .dp_replicate = 2, .micro_batch = 2, .data_parallel = fsdp()}, tied);
  // Recomputation, alone and with the others.
  const auto full = [](std::string method, int64_t layers) {
    return RecomputeOptions{
        .recompute_granularity = "full", .recompute_method = std::move(method), .recompute_num_layers = layers};
  };
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};
  add({.micro_batch = 2, .recompute = full("uniform", 1)}, all);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = full("uniform", 2)}, all);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = selective}, all);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = full("block", 1)}, all);
  add({.tp = 2,
       .dp = 2,
       .is_sequence_parallel = true,
       .micro_batch = 1,
       .data_parallel = fsdp(),
       .recompute = full("uniform", 1)},
      all);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = selective}, dropout);
  RecomputeOptions offloaded = full("block", 2);
  offloaded.cpu_offloading_num_layers = 1;
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = offloaded}, all);
  return list;
}

TEST(LayoutMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  EXPECT_GE(layouts().size(), 24U);
  expect_as_one_rank_in_float64(layouts());
}

TEST(LayoutMatrix, FusedOperatorsAgreeInFloat32) { expect_as_one_rank_in_float32(layouts()); }

}  // namespace
}  // namespace megalith
