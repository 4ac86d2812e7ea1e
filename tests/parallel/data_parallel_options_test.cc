// Megatron's data-parallel options: the rules between them, and the bucket size that follows.
#include "parallel/data_parallel_options.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/mesh.h"
#include "config/option.h"
#include "parallel/sharded_buffer.h"

namespace megalith {
namespace {

TEST(DataParallelOptions, RulesNameBothOptionsAndTheRemedy) {
  EXPECT_TRUE(check_data_parallel_options({}, {}).empty());
  EXPECT_TRUE(check_data_parallel_options(
                  {.use_distributed_optimizer = true, .overlap_grad_reduce = true, .overlap_param_gather = true},
                  {.num_distributed_optimizer_instances = 2})
                  .empty());
  const auto first = [](const DataParallelOptions& options, const ParallelOptions& parallel = {}) {
    const auto errors = check_data_parallel_options(options, parallel);
    return errors.size() == 1 ? errors[0].message() + " / " + errors[0].remedy() : fmt::format("{}", errors.size());
  };
  EXPECT_EQ(first({.use_distributed_optimizer = true, .overlap_param_gather = true}),
            "overlap_param_gather needs overlap_grad_reduce / add --overlap_grad_reduce, or leave overlap_param_gather "
            "out");
  EXPECT_EQ(first({.overlap_grad_reduce = true, .overlap_param_gather = true}),
            "overlap_param_gather needs use_distributed_optimizer / add --use_distributed_optimizer, or leave "
            "overlap_param_gather out");
  EXPECT_EQ(check_data_parallel_options({.overlap_param_gather = true}, {}).size(), 2u);
  EXPECT_EQ(first({.ddp_pad_buckets_for_high_nccl_busbw = true}).substr(0, 35), "ddp_pad_buckets_for_high_nccl_busbw");
  EXPECT_EQ(
      first({}, {.num_distributed_optimizer_instances = 2}),
      "num_distributed_optimizer_instances 2 needs use_distributed_optimizer / add --use_distributed_optimizer, or "
      "leave num_distributed_optimizer_instances 2 out");
  EXPECT_EQ(first({.ddp_bucket_size = 5, .ddp_num_buckets = 3}),
            "ddp_bucket_size 5 and ddp_num_buckets 3 are both given / keep one of them");
}

TEST(DataParallelOptions, TheBucketSizeIsMegatrons) {
  const DataParallelOptions overlap{.overlap_grad_reduce = true};
  EXPECT_EQ(bucket_elements({}, 1000, 4), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(bucket_elements(overlap, 1000, 4), 40'000'000);
  EXPECT_EQ(bucket_elements(overlap, 1000, 64), 64'000'000);
  EXPECT_EQ(bucket_elements({.ddp_bucket_size = 77}, 1000, 64), 77);
  EXPECT_EQ(bucket_elements({.ddp_num_buckets = 3}, 1000, 64), 334);
  EXPECT_EQ(bucket_elements({.ddp_num_buckets = 3}, 0, 64), 1);
}

TEST(DataParallelOptions, TheDistributedOptimizerShardsAndThePaddingIsItsOwn) {
  const Groups groups = Groups::single();
  Parameter param("a", Placement::whole("a", {10}), {});
  const std::vector<Parameter*> params = {&param};
  EXPECT_FALSE(make_data_parallel(params, groups, {})->parts().at(0).range.has_value());
  EXPECT_EQ(make_data_parallel(params, groups, {})->gradient_bytes(), 10 * 4);
  DataParallelOptions options{.use_distributed_optimizer = true};
  EXPECT_EQ(make_data_parallel(params, groups, options)->parts().at(0).range, (FlatRange{0, 10}));
  EXPECT_EQ(make_data_parallel(params, groups, options)->gradient_bytes(), 64 * 4);
  options.ddp_pad_buckets_for_high_nccl_busbw = true;
  EXPECT_EQ(make_data_parallel(params, groups, options)->gradient_bytes(), 65536 * 4);
}

TEST(DataParallelOptions, InstancesDivideTheDataParallelRanks) {
  ParallelOptions parallel{.num_distributed_optimizer_instances = 2};
  EXPECT_TRUE(check_parallel_sizes(parallel, 4).empty());
  const Mesh mesh = Mesh::from_options(parallel, 4);
  EXPECT_EQ(mesh.size(Axis::kDpShard), 2);
  EXPECT_EQ(mesh.size(Axis::kDpReplicate), 2);
  parallel.num_distributed_optimizer_instances = 3;
  const auto errors = check_parallel_sizes(parallel, 4);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(), "num_distributed_optimizer_instances 3 does not divide the data-parallel size 4");
}

// Megatron-LM's FSDP divides what our own options divide, strategy by strategy.
TEST(DataParallelOptions, MegatronsFsdpBecomesOurs) {
  struct Case {
    const char* strategy;
    bool zero, fsdp, reshards;
    const char* note;
  };
  for (const Case& one :
       {Case{"no_shard", false, false, true, "nothing is divided"},
        Case{"optim", true, false, true, "use_distributed_optimizer"},
        Case{"optim_grads", false, true, false, "use_torch_fsdp2 without torch_fsdp2_reshard_after_forward"},
        Case{"optim_grads_params", false, true, true, "use_torch_fsdp2"}}) {
    DataParallelOptions options;
    OptionSet set(options);
    const OptionSource person{OptionLayer::kCommandLine, "command line"};
    set.find("use_custom_fsdp")->set("true", person);
    set.find("data_parallel_sharding_strategy")->set(one.strategy, person);
    std::vector<std::string> notes;
    EXPECT_TRUE(resolve_fsdp(options, set, notes).empty());
    EXPECT_EQ(options.use_distributed_optimizer, one.zero) << one.strategy;
    EXPECT_EQ(options.use_torch_fsdp2, one.fsdp) << one.strategy;
    EXPECT_EQ(options.torch_fsdp2_reshard_after_forward, one.reshards) << one.strategy;
    EXPECT_TRUE(check_data_parallel_options(options, {}).empty()) << one.strategy;
    EXPECT_EQ(notes, std::vector<std::string>{fmt::format(
                         "use_megatron_fsdp with data_parallel_sharding_strategy {}: {}", one.strategy, one.note)});
    const Groups groups = Groups::single();
    Parameter param("a", Placement::whole("a", {10}), {});
    const bool is_sharded = make_data_parallel({&param}, groups, options)->parts().at(0).range.has_value();
    EXPECT_EQ(is_sharded, one.zero || one.fsdp) << one.strategy;
  }
}

// Its recipes have the distributed optimizer beside it, which is part of it and no contradiction.
TEST(DataParallelOptions, MegatronsFsdpTakesTheDistributedOptimizerBesideIt) {
  DataParallelOptions options;
  OptionSet set(options);
  for (const char* name :
       {"use_megatron_fsdp", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"}) {
    set.find(name)->set("true", {OptionLayer::kCommandLine, "command line"});
  }
  set.find("data_parallel_sharding_strategy")->set("optim_grads_params", {OptionLayer::kCommandLine, "command line"});
  std::vector<std::string> notes;
  EXPECT_TRUE(resolve_fsdp(options, set, notes).empty());
  EXPECT_TRUE(options.use_torch_fsdp2);
  EXPECT_FALSE(options.use_distributed_optimizer || options.overlap_param_gather);
  EXPECT_EQ(notes.at(1), "use_megatron_fsdp is on: off are use_distributed_optimizer, overlap_param_gather");
  EXPECT_TRUE(check_data_parallel_options(options, {.pipeline_model_parallel_size = 2}).empty());
  options.ddp_num_buckets = 4;
  EXPECT_TRUE(check_data_parallel_options(options, {}).empty());
}

TEST(DataParallelOptions, AStrategyWithoutItsFsdpIsRefused) {
  DataParallelOptions options;
  OptionSet set(options);
  set.find("data_parallel_sharding_strategy")->set("optim", {OptionLayer::kFile, "recipe.yaml:1"});
  std::vector<std::string> notes;
  auto errors = resolve_fsdp(options, set, notes);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(), "data_parallel_sharding_strategy optim needs use_megatron_fsdp");
  options.use_megatron_fsdp = options.use_torch_fsdp2 = true;
  errors = resolve_fsdp(options, set, notes);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(), "use_megatron_fsdp and use_torch_fsdp2 are both on");
}

// A preset or default gives way to FSDP, and that is said; what a person wrote contradicts it.
TEST(DataParallelOptions, FsdpSwitchesOffWhatPresetsSetAndRefusesWhatAPersonSets) {
  for (const OptionLayer layer : {OptionLayer::kPreset, OptionLayer::kFile, OptionLayer::kCommandLine}) {
    DataParallelOptions options;
    OptionSet set(options);
    set.find("use_torch_fsdp2")->set("true", {OptionLayer::kCommandLine, "command line"});
    set.find("use_distributed_optimizer")->set("true", {layer, "there"});
    set.find("overlap_param_gather")->set("true", {layer, "there"});
    std::vector<std::string> notes;
    const auto errors = resolve_fsdp(options, set, notes);
    if (layer == OptionLayer::kPreset) {
      EXPECT_TRUE(errors.empty());
      EXPECT_FALSE(options.use_distributed_optimizer || options.overlap_param_gather);
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_EQ(notes[0], "use_torch_fsdp2 is on: off are use_distributed_optimizer, overlap_param_gather");
    } else {
      ASSERT_EQ(errors.size(), 2u);
      EXPECT_EQ(errors[0].message(),
                "use_torch_fsdp2 (command line) and use_distributed_optimizer (there) are both on");
    }
  }
}

}  // namespace
}  // namespace megalith
