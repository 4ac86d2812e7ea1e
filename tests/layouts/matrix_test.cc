// The layout matrix: every layout gives the single rank's loss, gradients, norms and parameters.
#include <gtest/gtest.h>

#include <algorithm>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

// Sequences shared by ranks in every way, by themselves and with the other axes.
void add_context_parallel(std::vector<Layout>& list) {
  const auto add = [&](Layout layout, TinyRun task, int64_t sequence = 8) {
    task.sequence = sequence;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun plain, tied{.is_tied = true}, dropout{.has_dropout = true};
  const TinyRun all{.is_tied = true, .has_dropout = true, .has_documents = true, .has_qkv_bias = true};
  const TinyRun qwen{.has_documents = true, .has_qkv_bias = true};
  const TinyRun qwen3{.has_documents = true, .has_head_norms = true};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};
  // Each kind by itself.
  add({.cp = 2, .micro_batch = 8, .cp_comm_type = {"p2p"}}, plain);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"p2p"}}, all);
  add({.cp = 3, .micro_batch = 4, .cp_comm_type = {"p2p"}}, qwen, 12);
  add({.cp = 2, .micro_batch = 8, .cp_comm_type = {"all_gather"}}, plain);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"all_gather"}}, all);
  add({.cp = 2, .micro_batch = 8, .cp_comm_type = {"a2a"}}, dropout);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a"}}, all);
  add({.cp = 4, .micro_batch = 8, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, plain);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, all);
  add({.cp = 8, .micro_batch = 2, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 4}, all, 16);
  // A kind for each layer.
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"a2a", "p2p"}}, all);
  TinyRun four = all;
  four.num_layers = 4;
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a+p2p", "all_gather", "p2p", "a2a"}, .cp_ulysses = 2}, four);
  // With tensor, sequence and data parallelism.
  add({.tp = 2, .cp = 2, .micro_batch = 4, .cp_comm_type = {"p2p"}}, all);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 1, .cp_comm_type = {"a2a"}}, all);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"all_gather"}}, qwen);
  add({.tp = 4, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"p2p"}}, dropout);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .cp_comm_type = {"p2p"}}, tied);
  add({.dp = 2, .cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, qwen);
  add({.tp = 2, .dp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 1, .cp_comm_type = {"p2p"}}, all);
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"a2a"}}, qwen3);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"p2p"}}, qwen3);
  const TinyRun olmo{.has_dropout = true, .has_documents = true, .is_olmo = true};
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"p2p"}}, olmo);
  add({.tp = 2, .cp = 2, .micro_batch = 2, .cp_comm_type = {"a2a"}}, olmo);
  // A window that ends within a rank's chunk, or chunks before it.
  const TinyRun window{.has_documents = true, .window = 3};
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"p2p"}}, window);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"all_gather"}}, window);
  add({.cp = 2, .micro_batch = 2, .cp_comm_type = {"a2a"}}, TinyRun{.has_dropout = true, .window = 5});
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"p2p"}},
      TinyRun{.window = 4, .is_masked = true});
  add({.cp = 4, .micro_batch = 2, .recompute = selective, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, window);
  // In some layers only.
  const TinyRun mixed{.has_documents = true, .num_layers = 3, .window = 3, .windowed_layers = "2"};
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"p2p"}}, mixed);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a", "all_gather", "p2p"}}, mixed);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = full, .cp_comm_type = {"p2p"}},
      mixed);
  const TinyRun sinks{
      .has_dropout = true, .has_documents = true, .window = 3, .windowed_layers = "2", .has_sinks = true};
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"p2p"}}, sinks);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"all_gather"}}, sinks);
  add({.dp = 2, .cp = 4, .micro_batch = 1, .recompute = selective, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2},
      sinks);
  add({.tp = 2, .cp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = full, .cp_comm_type = {"a2a"}}, sinks);
  const auto gemma = [](const char* family) {
    return TinyRun{.is_tied = true, .has_documents = true, .window = 3, .windowed_layers = "2", .family = family};
  };
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"p2p"}}, gemma("gemma2"));
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .cp_comm_type = {"all_gather"}},
      gemma("gemma2"));
  add({.cp = 4, .micro_batch = 2, .recompute = selective, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2},
      gemma("gemma2"));
  add({.dp = 2, .cp = 2, .micro_batch = 2, .data_parallel = fsdp(), .cp_comm_type = {"a2a"}}, gemma("gemma3"));
  add({.tp = 2, .cp = 2, .micro_batch = 2, .recompute = full, .cp_comm_type = {"p2p"}}, gemma("gemma3"));
  // Sharded states and parameters.
  add({.cp = 2, .micro_batch = 4, .data_parallel = zero1(), .cp_comm_type = {"p2p"}}, all);
  add({.dp = 4, .cp = 2, .dp_replicate = 2, .micro_batch = 1, .data_parallel = zero1(), .cp_comm_type = {"a2a"}}, tied);
  add({.tp = 2, .dp = 2, .cp = 2, .micro_batch = 2, .data_parallel = zero1(), .cp_comm_type = {"all_gather"}}, all);
  add({.cp = 4, .micro_batch = 4, .data_parallel = fsdp(), .cp_comm_type = {"p2p"}}, all);
  add({.dp = 4, .cp = 2, .dp_replicate = 2, .micro_batch = 1, .data_parallel = fsdp(), .cp_comm_type = {"a2a"}}, tied);
  add({.tp = 2, .dp = 2, .cp = 2, .micro_batch = 2, .data_parallel = fsdp(), .cp_comm_type = {"p2p"}}, all);
  // Recomputed.
  add({.cp = 2, .micro_batch = 2, .recompute = full, .cp_comm_type = {"p2p"}}, all);
  add({.cp = 4, .micro_batch = 2, .recompute = full, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, all);
  for (const char* kind : {"p2p", "all_gather", "a2a"}) {
    add({.cp = 2, .micro_batch = 4, .recompute = selective, .cp_comm_type = {kind}}, all);
  }
  add({.tp = 2,
       .dp = 2,
       .cp = 2,
       .is_sequence_parallel = true,
       .micro_batch = 2,
       .data_parallel = fsdp(),
       .recompute = full,
       .cp_comm_type = {"p2p"}},
      all);
}

// Each dimension by itself, pairs and triples; ranks 2 to 8.
std::vector<Layout> layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun plain, tied{.is_tied = true}, dropout{.has_dropout = true};
  const TinyRun all{.is_tied = true, .has_dropout = true, .has_documents = true, .has_qkv_bias = true};
  const TinyRun qwen{.has_documents = true, .has_qkv_bias = true};
  const TinyRun twelve{.has_dropout = true, .global_batch = 12, .sequence = 7};
  const TinyRun many_heads{.has_dropout = true, .has_qkv_bias = true, .num_kv_heads = 8};

  // One rank: only accumulation.
  add({.micro_batch = 1}, plain);
  add({.micro_batch = 2}, all);
  add({.micro_batch = 3}, twelve);
  // Only tensor parallelism.
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
  // Only data parallelism.
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
  // Recomputation, by itself and with the others.
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
  // Norms of heads: each rank sums over heads of its own.
  const TinyRun qwen3{.is_tied = true, .has_documents = true, .has_head_norms = true};
  add({.tp = 2, .micro_batch = 8}, qwen3);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, qwen3);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1()}, qwen3);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = fsdp()}, qwen3);
  add({.tp = 2, .micro_batch = 4, .recompute = full("uniform", 1)}, qwen3);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4, .recompute = selective}, qwen3);
  // Norms behind the blocks, and of queries and keys that ranks share.
  const TinyRun olmo{.has_dropout = true, .has_documents = true, .is_olmo = true};
  add({.tp = 2, .micro_batch = 8}, olmo);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, olmo);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1()}, olmo);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = fsdp()}, olmo);
  add({.tp = 2, .micro_batch = 4, .recompute = full("uniform", 2)}, olmo);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4, .recompute = selective}, olmo);
  add_context_parallel(list);
  return list;
}

TEST(LayoutMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  EXPECT_GE(layouts().size(), 24U);
  expect_as_one_rank_in_float64(layouts());
}

TEST(LayoutMatrix, FusedOperatorsAgreeInFloat32) { expect_as_one_rank_in_float32(layouts()); }

}  // namespace
}  // namespace megalith
