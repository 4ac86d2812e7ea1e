// Checkpoints of the other optimizers: their state goes through Placements as AdamW's does, from every way of sharding
// to every other, and is not mistaken for another's.
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/temporary_folder.h"
#include "train/checkpoint_layouts.h"

namespace megalith {
namespace {

using namespace test;

std::vector<std::string> small_model(std::vector<std::string> more) {
  std::vector<std::string> words = {"--num_layers=2", "--hidden_size=32", "--num_attention_heads=2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kMuonWords = {"--optimizer=muon", "--muon_nesterov", "--muon_extra_scale_factor=0.2"};

// One of each way in which a matrix is divided.
std::vector<DataLayout> optimizer_layouts() {
  const std::string zero = "--use_distributed_optimizer";
  return {{"one rank", 1, 1, {}},
          {"zero dp4, small buckets", 1, 4, {zero, "--overlap_grad_reduce", "--ddp_bucket_size=1000"}},
          {"zero dp2 tp2", 2, 2, {zero, "--sequence_parallel"}},
          {"fsdp dp2 tp2", 2, 2, {"--use_torch_fsdp2"}},
          {"pp2 cp2", 1, 1, {}, 2, 2}};
}

TEST(OptimizerCheckpoints, MuonGoesOnFromEveryLayoutUnderEveryOther) {
  // Rounding in fp32 becomes up to 500 times as large in an update: losses of about 4 agree to a few 1e-5.
  expect_every_layout_goes_on_from_every_other(small_model(kMuonWords), optimizer_layouts(), "--fp32", 1e-4);
}

TEST(OptimizerCheckpoints, MuonOfExpertsGoesOnWhoeverHoldsThem) {
  const std::vector<std::string> experts = {"--ffn_hidden_size=24", "--untie_embeddings_and_output_weights",
                                            "--num_experts=4",      "--moe_router_topk=2",
                                            "--optimizer=muon",     "--muon_extra_scale_factor=0.2"};
  const std::vector<DataLayout> layouts = {
      {.name = "one rank"},
      {.name = "dp4 ep2, zero", .dp = 4, .words = {"--use_distributed_optimizer"}, .ep = 2},
      {.name = "tp2 sp, ep2 etp1", .tp = 2, .words = {"--sequence_parallel"}, .ep = 2, .etp = 1}};
  // Rounding may change the experts of a token: only the bytes are compared.
  expect_every_layout_goes_on_from_every_other(small_model(experts), layouts, "--fp32", 0);
}

TEST(OptimizerCheckpoints, SgdGoesOnFromEveryLayoutUnderEveryOther) {
  expect_every_layout_goes_on_from_every_other(small_model({"--optimizer=sgd"}), optimizer_layouts(), "--fp32", 1e-5);
}

TEST(OptimizerCheckpoints, LionGoesOnFromEveryLayoutUnderEveryOther) {
  // A sign that rounding changes moves its element by twice lr: losses of about 4 agree to a few 1e-4.
  expect_every_layout_goes_on_from_every_other(small_model({"--optimizer=lion"}), optimizer_layouts(), "--fp32", 1e-3);
}

TEST(OptimizerCheckpoints, AdafactorGoesOnFromEveryLayoutUnderEveryOther) {
  const std::vector<std::string> words = small_model({"--optimizer=adafactor"});
  expect_every_layout_goes_on_from_every_other(words, optimizer_layouts(), "--fp32", 1e-4);
}

TEST(OptimizerCheckpoints, Adam8bitGoesOnFromEveryLayoutUnderEveryOther) {
  // A code that rounding changes moves its moment by up to a tenth.
  const std::vector<std::string> words = small_model({"--optimizer=adam8bit", "--min_8bit_size=1000"});
  expect_every_layout_goes_on_from_every_other(words, optimizer_layouts(), "--fp32", 1e-3);
}

// N + M steps are N, a checkpoint, and M, to the last bit, in the dtypes in which Newton-Schulz steps are computed.
TEST(OptimizerCheckpoints, TheSameLayoutGoesOnBitForBit) {
  const TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  for (const DataLayout& layout : optimizer_layouts()) {
    for (const char* precision : {"--fp32", "--bf16"}) {
      const StepLosses straight =
          train_layout(small_model(kMuonWords), layout, {data_path, "--train_iters=4", precision});
      const TemporaryFolder saved;
      const std::string folder = saved.path().string();
      train_layout(small_model(kMuonWords), layout,
                   {data_path, "--train_iters=4", "--exit_interval=2", "--save", folder, precision});
      const StepLosses resumed =
          train_layout(small_model(kMuonWords), layout, {data_path, "--train_iters=4", "--load", folder, precision});
      EXPECT_EQ(resumed, StepLosses(straight.begin() + 2, straight.end())) << layout.name << " " << precision;
    }
  }
}

TEST(OptimizerCheckpoints, AnotherOptimizersStateIsRefusedWithTheWayOut) {
  const TemporaryFolder data, saved;
  const std::string data_path = "--data_path=" + write_documents(data.path()), folder = saved.path().string();
  const DataLayout one{"one rank", 1, 1, {}};
  train_layout(small_model({}), one, {data_path, "--train_iters=2", "--save", folder});
  try {
    train_layout(small_model(kMuonWords), one, {data_path, "--train_iters=3", "--load", folder});
    FAIL() << "AdamW's moments were taken for Muon's momentum";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("momentum_buffer model.layers.0"), std::string::npos) << text;
    EXPECT_NE(text.find("--optimizer adam"), std::string::npos) << text;
    EXPECT_NE(text.find("--optimizer muon"), std::string::npos) << text;
    EXPECT_NE(text.find("--no_load_optim"), std::string::npos) << text;
  }
  const StepLosses fresh =
      train_layout(small_model(kMuonWords), one, {data_path, "--train_iters=3", "--load", folder, "--no_load_optim"});
  EXPECT_EQ(fresh.size(), 1u);
}

}  // namespace
}  // namespace megalith
