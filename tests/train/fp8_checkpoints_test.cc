// The state of delayed scaling in checkpoints: a run goes on bit for bit, under another layout too, and begins afresh
// from a checkpoint without it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "support/temporary_folder.h"
#include "train/checkpoint_layouts.h"

namespace megalith {
namespace {

using namespace test;

const std::vector<std::string> kDelayed = {
    "--num_layers=2", "--hidden_size=32", "--num_attention_heads=2",  "--bf16",
    "--fp8=hybrid",   "--fp8_margin=1",   "--fp8_amax_history_len=3", "--fp8_amax_compute_algo=max"};

TEST(Fp8Checkpoints, ARunGoesOnBitForBit) {
  const TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  const std::string check = "--check_sync=1";
  for (const DataLayout& layout : {DataLayout{"one rank"}, DataLayout{"pp2", 1, 1, {}, 1, 2},
                                   DataLayout{"tp2 dp2", 2, 2, {"--use_distributed_optimizer", check}}}) {
    const StepLosses straight = train_layout(kDelayed, layout, {data_path, "--train_iters=6"});
    const TemporaryFolder saved;
    const std::string folder = saved.path().string();
    train_layout(kDelayed, layout, {data_path, "--train_iters=6", "--exit_interval=2", "--save", folder});
    const StepLosses resumed = train_layout(kDelayed, layout, {data_path, "--train_iters=6", "--load", folder});
    EXPECT_EQ(resumed, StepLosses(straight.begin() + 2, straight.end())) << layout.name;
  }
}

TEST(Fp8Checkpoints, TheStateIsReadUnderAnotherLayout) {
  const TemporaryFolder data, saved, again;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  train_layout(kDelayed, {"one rank"}, {data_path, "--train_iters=2", "--save", saved.path().string()});
  const TensorMap written = stored_tensors(saved.path(), 2);
  ASSERT_TRUE(written.contains("fp8_scale/model.layers.1.mlp.down_proj.gradient"));
  ASSERT_EQ(written.at("fp8_amax_history/model.layers.0.self_attn.o_proj.input").sizes(), at::IntArrayRef({1, 3}));
  EXPECT_GT(written.at("fp8_scale/model.layers.0.self_attn.o_proj.weight").item<float>(), 1);
  train_layout(kDelayed, {"tp2 pp2", 2, 1, {"--sequence_parallel"}, 1, 2},
               {data_path, "--train_iters=2", "--load", saved.path().string(), "--save", again.path().string()});
  const TensorMap read = stored_tensors(again.path(), 2);
  for (const auto& [name, tensor] : written) {
    EXPECT_TRUE(!name.starts_with("fp8_") || at::equal(read.at(name), tensor)) << name;
  }
}

TEST(Fp8Checkpoints, WithoutTheStateOrWithAnotherLengthARunBeginsAfresh) {
  const TemporaryFolder data, saved;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  const std::vector<std::string> plain(kDelayed.begin(), kDelayed.begin() + 4);
  train_layout(plain, {"one rank"}, {data_path, "--train_iters=2", "--save", saved.path().string()});
  const std::vector<std::string> more = {data_path, "--train_iters=4", "--load", saved.path().string()};
  EXPECT_EQ(train_layout(kDelayed, {"one rank"}, more).size(), 2U);
  const TemporaryFolder delayed, longer;
  train_layout(kDelayed, {"one rank"}, {data_path, "--train_iters=2", "--save", delayed.path().string()});
  train_layout(kDelayed, {"one rank"},
               {data_path, "--train_iters=2", "--load", delayed.path().string(), "--fp8_amax_history_len=4", "--save",
                longer.path().string()});
  const TensorMap before = stored_tensors(delayed.path(), 2), after = stored_tensors(longer.path(), 2);
  const std::string name = "model.layers.0.self_attn.o_proj.input";
  EXPECT_TRUE(at::equal(after.at("fp8_scale/" + name), before.at("fp8_scale/" + name)));
  EXPECT_TRUE(at::equal(after.at("fp8_amax_history/" + name), at::zeros({1, 4})));
}

}  // namespace
}  // namespace megalith
