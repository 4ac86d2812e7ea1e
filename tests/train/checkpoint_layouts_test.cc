// Checkpoints of dense models through the trainer, from every way of sharding to every other.
#include "train/checkpoint_layouts.h"

#include <gtest/gtest.h>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;

const std::vector<std::string> kDense = {"--num_layers=4", "--hidden_size=32", "--num_attention_heads=2"};

// The first is one rank; six others, each sharded in another way.
std::vector<DataLayout> data_layouts() {
  const std::string zero = "--use_distributed_optimizer", fsdp = "--use_torch_fsdp2";
  return {{"one rank", 1, 1, {}},
          {"replicated dp2", 1, 2, {}},
          {"zero dp4, overlapped, small buckets",
           1,
           4,
           {zero, "--overlap_grad_reduce", "--overlap_param_gather", "--ddp_bucket_size=1000"}},
          {"zero dp4 in two instances", 1, 4, {zero, "--num_distributed_optimizer_instances=2"}},
          {"zero dp2 tp2", 2, 2, {zero, "--overlap_grad_reduce", "--overlap_param_gather", "--sequence_parallel"}},
          {"fsdp dp4", 1, 4, {fsdp}},
          {"fsdp dp2 tp2, recomputed",
           2,
           2,
           {fsdp, "--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1"}}};
}

// Pipelines and shared sequences; embeddings are tied, so both ends of a pipeline hold the table.
std::vector<DataLayout> pipeline_layouts() {
  const std::string zero = "--use_distributed_optimizer";
  return {
      {"one rank", 1, 1, {}},
      {"pp2", 1, 1, {}, 1, 2},
      {"pp2 x 2 dp2, zero", 1, 2, {zero, "--num_virtual_stages_per_pipeline_rank=2", "--overlap_grad_reduce"}, 1, 2},
      {"tp2 pp2, zero bubble in a V", 2, 1, {"--pp_algorithm=zbv-formatted", "--sequence_parallel"}, 1, 2},
      {"cp2 dp2, zero", 1, 2, {zero}, 2, 1},
      {"tp2 cp2 pp2, uneven", 2, 1, {"--decoder_first_pipeline_num_layers=1"}, 2, 2},
      {"cp2 pp2 fsdp dp2", 1, 2, {"--use_torch_fsdp2"}, 2, 2}};
}

struct LayoutCase {
  std::string name;
  std::vector<DataLayout> (*layouts)();
  std::string precision;
};
class EveryLayout : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(EveryLayout, GoesOnFromEveryOther) {
  const LayoutCase& tried = GetParam();
  // bf16 activations: sums in another order move a loss of 4 by a few 1e-2.
  const double tolerance = tried.precision == "--fp32" ? 1e-5 : 2e-2;
  expect_every_layout_goes_on_from_every_other(kDense, tried.layouts(), tried.precision, tolerance);
}

INSTANTIATE_TEST_SUITE_P(CheckpointLayouts, EveryLayout,
                         ::testing::Values(LayoutCase{"data_fp32", data_layouts, "--fp32"},
                                           LayoutCase{"data_bf16", data_layouts, "--bf16"},
                                           LayoutCase{"pipeline_fp32", pipeline_layouts, "--fp32"},
                                           LayoutCase{"pipeline_bf16", pipeline_layouts, "--bf16"}),
                         [](const auto& info) { return info.param.name; });

// Under one layout a run that was stopped is the run in one go, to the last bit.
TEST(CheckpointLayouts, TheSameLayoutGoesOnBitForBit) {
  const TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  std::vector<DataLayout> layouts = data_layouts();
  for (const DataLayout& layout : pipeline_layouts()) layouts.push_back(layout);
  for (const DataLayout& layout : layouts) {
    for (const char* precision : {"--fp32", "--bf16"}) {
      const StepLosses straight = train_layout(kDense, layout, {data_path, "--train_iters=6", precision});
      const TemporaryFolder saved;
      const std::string folder = saved.path().string();
      train_layout(kDense, layout, {data_path, "--train_iters=6", "--exit_interval=2", "--save", folder, precision});
      const StepLosses resumed =
          train_layout(kDense, layout, {data_path, "--train_iters=6", "--load", folder, precision});
      EXPECT_EQ(resumed, StepLosses(straight.begin() + 2, straight.end())) << layout.name << " " << precision;
    }
  }
}

}  // namespace
}  // namespace megalith
