// Narrow optimizer states through the trainer: the same losses as with fp32 masters, and checkpoints that hold the same
// whatever form they were written from.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <initializer_list>

#include "support/temporary_folder.h"
#include "train/checkpoint_layouts.h"

namespace megalith {
namespace {

using namespace test;
using NarrowWords = std::vector<std::string>;

NarrowWords joined(std::initializer_list<NarrowWords> lists) {
  NarrowWords all;
  for (const NarrowWords& words : lists) all.insert(all.end(), words.begin(), words.end());
  return all;
}

const NarrowWords kNarrowModel = {"--num_layers=2", "--hidden_size=32", "--num_attention_heads=2"};
const NarrowWords kRemainder = {"--master_weights=remainder"};
const NarrowWords kBf16Moments = {"--use_precision_aware_optimizer", "--exp_avg_dtype=bf16", "--exp_avg_sq_dtype=bf16"};
const NarrowWords kAllNarrow =
    joined({kBf16Moments, {"--master_weights=none", "--stochastic_rounding", "--main_grads_dtype=bf16"}});

struct NarrowRuns {
  TemporaryFolder data;
  NarrowWords common{"--data_path=" + write_documents(data.path()), "--train_iters=6", "--bf16"};

  StepLosses train(const DataLayout& layout, const NarrowWords& more) const {
    return train_layout(kNarrowModel, layout, joined({common, more}));
  }
};

const DataLayout kOneRank{.name = "one rank"};

TEST(NarrowOptimizer, RemaindersTrainAsFp32MastersToTheBit) {
  const NarrowRuns runs;
  const std::vector<DataLayout> layouts = {
      kOneRank,
      {"zero dp4, small buckets", 1, 4, {"--use_distributed_optimizer", "--ddp_bucket_size=1000"}},
      {"fsdp dp2 tp2", 2, 2, {"--use_torch_fsdp2"}},
      {"pp2 cp2", 1, 1, {}, 2, 2}};
  for (const DataLayout& layout : layouts) {
    EXPECT_EQ(runs.train(layout, kRemainder), runs.train(layout, {})) << layout.name;
  }
  EXPECT_EQ(runs.train(kOneRank, joined({kRemainder, kBf16Moments})), runs.train(kOneRank, kBf16Moments));
}

TEST(NarrowOptimizer, ACheckpointGoesOnInEitherForm) {
  const NarrowRuns runs;
  const DataLayout zero{"zero dp2", 1, 2, {"--use_distributed_optimizer"}};
  const StepLosses straight = runs.train(zero, {}), rest(straight.begin() + 3, straight.end());
  std::vector<TensorMap> stored;
  for (const NarrowWords& writer : {NarrowWords{}, kRemainder, joined({kRemainder, {"--async_save"}})}) {
    const TemporaryFolder saved;
    const NarrowWords save = {"--save", saved.path().string(), "--exit_interval=3"};
    runs.train(zero, joined({writer, save}));
    stored.push_back(stored_tensors(saved.path(), 3));
    for (const NarrowWords& reader : {NarrowWords{}, kRemainder}) {
      EXPECT_EQ(runs.train(zero, joined({reader, {"--load", saved.path().string()}})), rest);
    }
    // As weights only: masters are kept, moments begin anew.
    const NarrowWords weights = {"--load", saved.path().string(), "--no_load_optim"};
    EXPECT_EQ(runs.train(zero, joined({kRemainder, weights})), runs.train(zero, weights));
  }
  for (size_t i = 1; i < stored.size(); ++i) {
    ASSERT_EQ(stored[i].size(), stored[0].size());
    ASSERT_TRUE(stored[i].contains("master/model.norm.weight"));
    for (const auto& [name, tensor] : stored[0]) {
      EXPECT_TRUE(at::equal(stored[i].at(name), tensor)) << name;
    }
  }
}

TEST(NarrowOptimizer, AllInBf16GoesOnBitForBit) {
  const NarrowRuns runs;
  for (const DataLayout& layout : {kOneRank, DataLayout{"fsdp dp2 tp2", 2, 2, {"--use_torch_fsdp2"}}}) {
    const StepLosses straight = runs.train(layout, kAllNarrow), rest(straight.begin() + 3, straight.end());
    const TemporaryFolder saved;
    runs.train(layout, joined({kAllNarrow, {"--save", saved.path().string(), "--exit_interval=3"}}));
    const NarrowWords load = {"--load", saved.path().string()};
    EXPECT_EQ(runs.train(layout, joined({kAllNarrow, load})), rest) << layout.name;
    for (const auto& [name, tensor] : stored_tensors(saved.path(), 3)) {
      EXPECT_FALSE(name.starts_with("master/")) << name;
      EXPECT_TRUE(at::equal(tensor.to(at::kBFloat16).to(at::kFloat), tensor)) << name << " is not in bf16";
    }
    // Other forms go on from the weights that there are.
    EXPECT_EQ(runs.train(layout, joined({kRemainder, load})), runs.train(layout, load)) << layout.name;
  }
}

}  // namespace
}  // namespace megalith
