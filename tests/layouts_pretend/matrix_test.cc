// A part of the layout matrix on an accelerator: each rank a thread with a pretend device of its own, compared with one
// rank on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layouts_pretend/devices_of_ranks.h"

namespace megalith {
namespace {

using namespace test;

PipelineOptions interleaved(int64_t chunks) { return {.num_virtual_stages_per_pipeline_rank = chunks}; }

std::vector<Layout> layouts_of_devices() {
  const TinyRun plain, tied{.is_tied = true, .has_dropout = true};
  const TinyRun qwen{.has_documents = true, .has_qkv_bias = true};
  TinyRun longer = qwen, four = tied, mixtral{.family = "mixtral"}, deepseek{.family = "deepseek"};
  longer.sequence = 8;
  four.num_layers = 4;
  TinyRun longer_mixtral = mixtral;
  longer_mixtral.sequence = 8;
  TinyRun on_host = plain, experts_on_host = mixtral;
  on_host.optimizer = experts_on_host.optimizer = "adam on the host";
  RecomputeOptions offloaded{.recompute_granularity = "full", .recompute_method = "block", .recompute_num_layers = 2};
  offloaded.cpu_offloading_num_layers = 1;
  return {
      {.micro_batch = 2, .task = tied},
      // Each axis by itself.
      {.tp = 2, .micro_batch = 4, .task = qwen},
      {.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .task = tied},
      {.pp = 2, .micro_batch = 2, .task = tied},
      {.pp = 2, .micro_batch = 1, .task = four, .pipeline = interleaved(2)},
      {.pp = 2, .micro_batch = 2, .task = qwen, .pipeline = {.pp_algorithm = "zero-bubble"}},
      {.cp = 2, .micro_batch = 4, .task = longer, .cp_comm_type = {"p2p"}},
      {.cp = 2, .micro_batch = 4, .task = longer, .cp_comm_type = {"a2a"}},
      {.cp = 2, .micro_batch = 4, .task = longer, .cp_comm_type = {"all_gather"}},
      {.dp = 2, .micro_batch = 2, .task = tied},
      {.dp = 2, .micro_batch = 2, .task = qwen, .data_parallel = zero1()},
      {.dp = 2, .micro_batch = 2, .task = plain, .data_parallel = fsdp()},
      {.dp = 2, .micro_batch = 2, .task = mixtral, .ep = 2},
      {.dp = 2, .micro_batch = 2, .task = deepseek, .ep = 2, .dispatcher = "allgather"},
      // Mixtures.
      {.tp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = tied, .recompute = offloaded},
      {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = plain, .data_parallel = zero1()},
      {.dp = 2, .cp = 2, .micro_batch = 2, .task = longer_mixtral, .cp_comm_type = {"p2p"}, .ep = 4},
      {.tp = 2, .dp = 2, .micro_batch = 4, .task = plain, .data_parallel = fsdp()},
      // States, or parameters too, in host memory.
      {.dp = 2, .micro_batch = 2, .task = on_host},
      {.pp = 2, .micro_batch = 2, .task = on_host},
      {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = on_host, .data_parallel = zero1()},
      {.dp = 2, .micro_batch = 2, .task = experts_on_host, .data_parallel = zero1(), .ep = 2},
      {.dp = 2, .micro_batch = 2, .task = plain, .data_parallel = fsdp_on_host()},
      {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = plain,
       .data_parallel = fsdp_on_host()},
      {.dp = 4, .dp_replicate = 2, .micro_batch = 1, .task = plain, .data_parallel = fsdp_on_host()},
      {.dp = 2, .cp = 2, .micro_batch = 2, .task = longer, .data_parallel = fsdp_on_host(), .recompute = offloaded},
  };
}

// The references are the CPU's operators: only sums over ranks are in another order, as in the matrix on the CPU.
TEST(MatrixOfDevices, TrainsAsOneRankInFloat64) {
  constexpr int kSteps = 2;  // a wrong norm shows in the parameters of the first, a lost update in the second
  const Precision on_devices{.devices = &devices_of_ranks()};
  for (const Layout& layout : layouts_of_devices()) {
    const RankOutcome& expected = single_rank_outcome(layout, {}, kSteps);
    EXPECT_EQ(compare(layout, run_layout(layout, on_devices, kSteps), expected, 1e-9).first_failure, "");
  }
}

// The kernels of GPUs against those of the CPU: float32 keeps 24 bits, and some tens of rounded terms through two
// layers differ by some 1e-6 of the largest element.
TEST(MatrixOfDevices, KernelsOfGpusAgreeInFloat32) {
  const Precision fused{at::kFloat, Kernels::kFused, &devices_of_ranks()};
  for (const Layout& layout : layouts_of_devices()) {
    RankOutcome expected = single_rank_outcome(layout, fused, 1);
    expected.parameters.clear();  // after one step they follow the gradient's sign, whatever its size
    EXPECT_EQ(compare(layout, run_layout(layout, fused, 1), expected, 1e-4).first_failure, "");
  }
}

}  // namespace
}  // namespace megalith
