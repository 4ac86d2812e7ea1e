// Prices of traced work against arithmetic on paper.
#include "planner/work_price.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ops/linear/linear.h"
#include "ops/swiglu/swiglu.h"

namespace megalith {
namespace {

constexpr double kRounding = 1e-12;

// 100 TFLOP/s, 1 TB/s, links of 100 GB/s and 10 GB/s, no latencies.
Cluster plain_cluster(int64_t nodes = 1) {
  Cluster cluster{.chip = {}, .nodes = nodes, .gpus_per_node = 4, .file = {}};
  cluster.chip.tflops = 100, cluster.chip.fp8_tflops = 200, cluster.chip.memory_tb_per_s = 1;
  cluster.chip.link_gb_per_s = 100, cluster.chip.network_gb_per_s = 10;
  cluster.chip.link_us = cluster.chip.network_us = cluster.chip.operator_us = 0;
  cluster.chip.product_share = cluster.chip.fp8_share = cluster.chip.memory_share = 1;
  cluster.chip.attention_share = 0.8, cluster.chip.attention_backward_share = 0.5;
  return cluster;
}

TracedWork product(double m, double n, double k) {
  return {.kind = WorkKind::kProduct, .name = "linear_forward", .m = m, .n = n, .k = k, .flops = 2 * m * n * k};
}

TEST(WorkPrice, AnOperatorTakesWhatBoundsIt) {
  const Cluster cluster = plain_cluster();
  EXPECT_NEAR(operator_s(product(1024, 1024, 1000), cluster.chip), 2 * 1024.0 * 1024 * 1000 / 100e12, kRounding);
  TracedWork moving = product(1024, 1024, 1000);
  moving.bytes = 1e9;
  EXPECT_NEAR(operator_s(moving, cluster.chip), 1e-3, kRounding);
  TracedWork eight = product(1024, 1024, 1000);
  eight.is_in_eight_bits = true;
  // Its first operand is read in 16 bits and written twice in 8, unless a product before it did so.
  const double rounding_s = 4 * 1024.0 * 1000 / 1e12, eight_s = 1024.0 * 1024 * 1000 / 100e12;
  EXPECT_NEAR(operator_s(eight, cluster.chip), eight_s + rounding_s, kRounding);
  eight.is_weight_gradient = true;
  EXPECT_NEAR(operator_s(eight, cluster.chip), eight_s, kRounding);
  TracedWork attention{.kind = WorkKind::kAttention, .name = "attention_forward", .k = 128, .flops = 1e12};
  EXPECT_NEAR(operator_s(attention, cluster.chip), 0.01 / 0.8, kRounding);
  attention.is_backward = true, attention.k = 32;
  EXPECT_NEAR(operator_s(attention, cluster.chip), 0.01 / 0.5, kRounding);
  ChipRates with_units = cluster.chip;
  with_units.units = 132;
  EXPECT_NEAR(operator_s(attention, with_units), 0.01 / 0.5 * 2, kRounding);
}

TEST(WorkPrice, TilesFillWholeWavesOfUnits) {
  ChipRates chip = plain_cluster().chip;
  chip.units = 4;
  // 128 of K are a tile's loads and stores.
  const auto of = [&](double elements, double k) { return 2 * elements * (k + 128) / 100e12; };
  EXPECT_NEAR(operator_s(product(1024, 1024, 1000), chip), of(1024.0 * 1024, 1000), kRounding);
  // 130 columns are two tiles' worth.
  EXPECT_NEAR(operator_s(product(1024, 130, 1000), chip), of(1024.0 * 256, 1000), kRounding);
  // One tile leaves three units idle, so K is split.
  EXPECT_NEAR(operator_s(product(128, 256, 4096), chip), of(4 * 128.0 * 256, 4096.0 / 4), kRounding);
}

TEST(WorkPrice, CollectivesAreRingsOfTheirLink) {
  const Cluster cluster = plain_cluster(2);
  const std::vector<int> node = {0, 1, 2, 3}, both = {0, 1, 2, 3, 4, 5, 6, 7}, across = {0, 4};
  const auto seconds = [&](CollectiveKind kind, const std::vector<int>& ranks) {
    return collective_s(kind, 1e9, span_of(ranks, cluster), cluster);
  };
  EXPECT_NEAR(seconds(CollectiveKind::kAllGather, node), 0.01 * 3 / 4, kRounding);
  EXPECT_NEAR(seconds(CollectiveKind::kAllReduce, node), 2 * 0.01 * 3 / 4, kRounding);
  // Each of four NICs moves a quarter.
  EXPECT_NEAR(seconds(CollectiveKind::kAllGather, both), 0.1 / 4 / 2, kRounding);
  EXPECT_NEAR(seconds(CollectiveKind::kAllGather, across), 0.1 / 2, kRounding);
  EXPECT_NEAR(seconds(CollectiveKind::kAllToAll, both), 0.1 * 4 / 8, kRounding);
  EXPECT_NEAR(seconds(CollectiveKind::kSendReceive, across), 0.1, kRounding);
  EXPECT_EQ(seconds(CollectiveKind::kAllReduce, {0}), 0);
  // Rings of nodes, trees, and steps within nodes.
  Cluster slow = cluster;
  slow.chip.link_us = 1, slow.chip.network_us = 10;
  EXPECT_NEAR(collective_s(CollectiveKind::kAllGather, 0, span_of(both, slow), slow), 12e-6, kRounding);
  EXPECT_NEAR(collective_s(CollectiveKind::kAllReduce, 0, span_of(both, slow), slow), 24e-6, kRounding);
  // Sums may have rates of their own, as Gloo's.
  slow = cluster;
  slow.chip.all_reduce_gb_per_s = 50, slow.chip.reduce_scatter_gb_per_s = 25;
  const auto of_sums = [&](CollectiveKind kind) { return collective_s(kind, 1e9, span_of(node, slow), slow); };
  EXPECT_NEAR(of_sums(CollectiveKind::kAllReduce), 2 * 0.02 * 3 / 4, kRounding);
  EXPECT_NEAR(of_sums(CollectiveKind::kReduceScatter), 0.04 * 3 / 4, kRounding);
  EXPECT_NEAR(of_sums(CollectiveKind::kAllGather), 0.01 * 3 / 4, kRounding);
  EXPECT_EQ(span_of(node, cluster).link(), "link");
  EXPECT_EQ(span_of(across, cluster).link(), "network");
}

TEST(WorkPrice, HiddenCommunicationCostsLessThanWaiting) {
  const Cluster cluster = plain_cluster();
  const auto ranks = std::make_shared<const std::vector<int>>(std::vector<int>{0, 1});
  const TracedWork gather{.kind = WorkKind::kCollective, .name = "x", .bytes = 2e9,
                          .collective = CollectiveKind::kAllGather, .axis = "tp", .ranks = ranks, .id = 7};  // 10 ms
  TracedWork work = product(1024, 1024, 1000);
  work.bytes = 4e9;  // 4 ms
  const TracedWork wait{.kind = WorkKind::kWait, .name = "wait", .id = 7};
  const WorkTimes hidden = price_work({gather, work, wait, work}, cluster, 1);
  EXPECT_NEAR(hidden.exposed.at("tp over the link"), 6e-3 + 0.61 * 4e-3, kRounding);
  EXPECT_NEAR(hidden.total(), 14e-3 + 0.61 * 4e-3, kRounding);
  // All of it; waiting twice costs once.
  work.bytes = 12e9;
  EXPECT_NEAR(price_work({gather, work, wait, wait}, cluster, 1).total(), 12e-3 + 0.61 * 10e-3, kRounding);
  work.bytes = 4e9;
  EXPECT_NEAR(price_work({gather, wait, work, work}, cluster, 1).total(), 18e-3, kRounding);
  // A processor that communicates does not compute.
  Cluster alone = cluster;
  alone.chip.hidden_share = 1;
  EXPECT_NEAR(price_work({gather, work, wait, work}, alone, 1).total(), 18e-3, kRounding);
}

TEST(WorkTrace, SaysWhatOperatorsOnTheMetaDeviceWouldDo) {
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({64, 32}, meta), w = at::empty({16, 32}, meta);
  WorkTrace trace;
  {
    const WorkRecorder recorder(trace, /*has_eight_bit_recipe=*/false);
    const at::Tensor y = ops::linear_forward(x, w);
    ops::linear_wgrad_(at::empty({16, 32}, meta.dtype(at::kFloat)), y, x);
    ops::swiglu(y);
    y.view({-1});  // free
    y + y;
  }
  ops::linear_forward(x, w);
  ASSERT_EQ(trace.size(), 4u);
  EXPECT_EQ(trace[0].flops, 2 * 64 * 16 * 32);
  EXPECT_EQ(trace[0].bytes, 2 * (64 * 32 + 16 * 32 + 64 * 16));
  EXPECT_FALSE(trace[0].is_weight_gradient);
  EXPECT_EQ(trace[1].flops, 2 * 64 * 16 * 32);
  EXPECT_TRUE(trace[1].is_weight_gradient);
  EXPECT_EQ(trace[2].name, "swiglu");
  EXPECT_EQ(trace[2].bytes, 2 * (64 * 16 + 64 * 8));
  EXPECT_EQ(trace[3].bytes, 2 * 3 * 64 * 16);
}

}  // namespace
}  // namespace megalith
