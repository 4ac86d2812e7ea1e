// Both networks called BERT over every kind of layout against a single rank: masked tokens and the order of sentences,
// each loss over a weight of its own, padding, two types of tokens, and the heads behind the last layer.
#include <gtest/gtest.h>

#include "layouts/layout_list.h"

namespace megalith {
namespace {

using namespace test;

const RecomputeOptions kMlp{.recompute_granularity = "selective", .recompute_modules = {"mlp"}};

TinyRun bert_run(const std::string& family, bool has_dropout = true, int64_t num_layers = 2) {
  return {.is_tied = true, .has_dropout = has_dropout, .num_layers = num_layers, .family = family, .is_masked = true};
}

std::vector<Layout> bert_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task) {
    if (layout.cp > 1) task.sequence = 8;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun published = bert_run("bert"), megatron = bert_run("megatron_bert");
  const TinyRun deep = bert_run("bert", true, 4), untied{.family = "megatron_bert", .is_masked = true};
  // Unlike numbers of masked tokens and of sentences in each microbatch.
  add({.micro_batch = 1}, published);
  add({.micro_batch = 2, .recompute = every_layer()}, published);
  add({.micro_batch = 2, .recompute = within_layers()}, published);
  add({.micro_batch = 4, .recompute = kMlp}, megatron);
  add({.dp = 4, .micro_batch = 1}, megatron);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = within_layers()}, published);
  add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, published);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = every_layer()}, megatron);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .recompute = every_layer()}, published);
  // A split vocabulary with its bias, and split tokens.
  add({.tp = 2, .micro_batch = 4}, published);
  add({.tp = 4, .micro_batch = 2}, untied);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, megatron);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4, .recompute = within_layers()}, published);
  // The first token of a sequence lies on one rank, its neighbours on others.
  add({.cp = 2, .micro_batch = 4}, published);
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"all_gather"}}, megatron);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a"}}, published);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, megatron);
  add({.tp = 2, .dp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1()}, published);
  // The tied table at both ends of a pipeline, and one tensor in between.
  add({.pp = 2, .micro_batch = 2}, published);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = zero1()}, megatron);
  add({.pp = 2, .micro_batch = 2, .recompute = every_layer(), .pipeline = {.num_layers_per_virtual_pipeline_stage = 1}},
      deep);
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2}, megatron);
  return list;
}

// No Hugging Face class has them; their tensors have the names of Megatron-LM's BERT.
std::vector<Layout> layouts_with_experts() {
  std::vector<Layout> list;
  for (Layout layout : {Layout{.dp = 2, .ep = 2}, Layout{.tp = 2, .is_sequence_parallel = true, .micro_batch = 2},
                        Layout{.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2},
                        Layout{.dp = 2,
                               .micro_batch = 2,
                               .data_parallel = zero1(),
                               .recompute = every_layer(),
                               .ep = 2},
                        Layout{.dp = 2, .micro_batch = 1, .data_parallel = fsdp()},
                        Layout{.pp = 2,
                        .micro_batch = 2,
                        .recompute = {.recompute_granularity = "selective", .recompute_modules = {"moe"}}},
                        Layout{.dp = 2, .pp = 2, .micro_batch = 2, .ep = 2}}) {
    layout.task = bert_run("bert_experts");
    list.push_back(layout);
  }
  return list;
}

TEST(BertLayouts, EqualOneRankInFloat64) { expect_as_one_rank_in_float64(bert_layouts()); }

TEST(BertLayouts, EqualOneRankInFloat32) { expect_as_one_rank_in_float32(bert_layouts()); }

TEST(BertLayouts, EqualOneRankWithExperts) { expect_as_one_rank_in_float64(layouts_with_experts()); }

}  // namespace
}  // namespace megalith
