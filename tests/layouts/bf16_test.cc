// What bfloat16 does to the numbers of a layout: which bits must not change, and what only rounding decides.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "layouts/layout.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"

namespace megalith {
namespace {

using namespace test;

constexpr double kBf16Step = 1.0 / 128;  // between neighbours of 1; rounding to the nearest costs half of it at most
const Precision kFusedBf16{at::kBFloat16, Kernels::kFused};

double largest_element(const Holding& holding) { return holding.value.abs().max().to(at::kDouble).item<double>(); }

// Every gradient's largest difference from `expected`, over the elements that the ranks hold.
std::map<std::string, double> gradient_differences(const std::vector<RankOutcome>& ranks, const RankOutcome& expected) {
  std::map<std::string, double> found;
  for (const RankOutcome& rank : ranks) {
    for (const auto& [name, actual] : rank.gradients) {
      const at::Tensor whole = expected.gradients.at(name).value.to(at::kDouble);
      const at::Tensor difference = (actual.value.to(at::kDouble) - whole).abs();
      const at::Tensor of_held = at::where(actual.is_held, difference, at::zeros_like(difference));
      found[name] = std::max(found[name], of_held.max().item<double>());
    }
  }
  EXPECT_EQ(found.size(), expected.gradients.size());
  return found;
}

// ---- Squared-ReLU GPT over pipelines ----

std::vector<Layout> gpt_pipelines(bool is_tied) {
  const TinyRun task{.is_tied = is_tied, .num_layers = 4, .family = "gpt"};
  std::vector<Layout> layouts = {
      {.pp = 2, .micro_batch = 2},
      {.pp = 4, .micro_batch = 2},
      {.pp = 2, .micro_batch = 2, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}},
      {.pp = 2, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}},
  };
  for (Layout& layout : layouts) layout.task = task;
  return layouts;
}

// A stage computes what its layers compute on one rank, in the same order; a boundary rounds nothing that the layers do
// not round there.
TEST(Bf16, APipelineChangesNoBitOfAGradient) {
  for (const bool is_tied : {false, true}) {
    for (const Layout& layout : gpt_pipelines(is_tied)) {
      const Layout alone{.micro_batch = layout.micro_batch, .task = layout.task};
      const RankOutcome expected = run_layout(alone, kFusedBf16, 1)[0];
      const std::vector<RankOutcome> ranks = run_layout(layout, kFusedBf16, 1);
      for (const RankOutcome& rank : ranks) EXPECT_EQ(rank.losses, expected.losses) << layout.text();
      for (const auto& [name, difference] : gradient_differences(ranks, expected)) {
        // A tied table is added up at both ends of the pipeline, and the two sums are added, all in fp32.
        const bool has_two_sums = is_tied && name == "model.embed_tokens.weight";
        const double bound = has_two_sums ? 1e-6 * largest_element(expected.gradients.at(name)) : 0;
        EXPECT_LE(difference, bound) << layout.text() << ": " << name;
      }
    }
  }
}

// Without rotary positions a key's bias adds one number to all scores of a query, and softmax does not see it: its
// gradient is 0, and what is computed is what rounding leaves of a sum that vanishes. Adam divides one moment of it by
// the root of the other, so that rounding moves the bias by up to lr. Two runs in bf16 that do not agree to the bit
// differ in it as in a random number: it is to be compared at the size of other gradients (CheckTolerance::floor).
TEST(Bf16, TheGradientOfAKeyBiasIsOnlyRounding) {
  const TinyRun task{.num_layers = 4, .family = "gpt"};
  const RankOutcome exact = run_layout({.micro_batch = 2, .task = task}, {}, 1)[0];
  const RankOutcome rounded = run_layout({.micro_batch = 2, .task = task}, kFusedBf16, 1)[0];
  // Tensor parallelism rounds the parts of sums.
  const auto differences =
      gradient_differences(run_layout({.tp = 2, .micro_batch = 2, .task = task}, kFusedBf16, 1), rounded);
  for (int64_t layer = 0; layer < task.num_layers; ++layer) {
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    const std::string key = attention + "k_proj.bias", query = attention + "q_proj.bias";
    const double scale = largest_element(exact.gradients.at(query));
    EXPECT_LE(largest_element(exact.gradients.at(key)), 1e-12 * scale) << key;
    // A few roundings of scores' gradients, which are of the size of the query bias's.
    EXPECT_GT(largest_element(rounded.gradients.at(key)), 0) << key;
    EXPECT_LE(largest_element(rounded.gradients.at(key)), 4 * kBf16Step * scale) << key;
    EXPECT_LE(differences.at(key), 8 * kBf16Step * scale) << key;
    EXPECT_GE(differences.at(key), 0.25 * largest_element(rounded.gradients.at(key))) << key << " has a meaning";
  }
}

// ---- Reduction in bf16 with experts ----

DataParallelKind reduced(bool in_bf16, bool is_sharded) {
  const GradBufferOptions options{.bucket_elements = 700, .reduce_in_bf16 = in_bf16};
  return {fmt::format("{}, reduced in {}", is_sharded ? "sharded" : "replicated", in_bf16 ? "bf16" : "fp32"),
          [=](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            if (!is_sharded) return std::make_unique<GradBuffer>(model.parameters(), groups, options);
            return std::make_unique<ShardedGradBuffer>(model.parameters(), groups,
                                                       ShardedBufferOptions{.gradients = options});
          }};
}

// An expert's gradient is summed over the ranks that hold the expert, other gradients over all that share the data. So
// how often a gradient is rounded depends on the layout: not at all where the only copy of an expert is.
TEST(Bf16, ReductionInBf16RoundsExpertsAsOftenAsTheyHaveCopies) {
  const Precision fp32{at::kFloat, Kernels::kReference};
  const TinyRun mixtral{.family = "mixtral"}, deepseek{.family = "deepseek"};
  const Layout layouts[] = {
      {.dp = 2, .task = mixtral, .ep = 2},
      {.dp = 4, .task = deepseek, .ep = 4},
      {.dp = 4, .task = deepseek, .ep = 2},
      {.dp = 4, .task = mixtral},
      {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = mixtral, .ep = 2, .etp = 1},
  };
  for (Layout layout : layouts) {
    for (const bool is_sharded : {false, true}) {
      const RankOutcome& expected = single_rank_outcome(layout, fp32, 1);
      layout.data_parallel = reduced(false, is_sharded);
      const auto in_fp32 = gradient_differences(run_layout(layout, fp32, 1), expected);
      layout.data_parallel = reduced(true, is_sharded);
      const auto in_bf16 = gradient_differences(run_layout(layout, fp32, 1), expected);
      const int copies = layout.world_size() / (layout.ep * (layout.etp == 0 ? layout.tp : layout.etp));
      double largest_rounding = 0;
      for (const auto& [name, difference] : in_bf16) {
        const bool is_expert = name.find(".mlp.experts.") != std::string::npos;
        const int summands = is_expert ? copies : layout.dp;
        const double largest = largest_element(expected.gradients.at(name));
        // Each summand is rounded, and their sum: half a step each, at the size of the largest element.
        const double bound = summands == 1 ? 0 : (summands + 1) * 0.5 * kBf16Step * largest;
        EXPECT_LE(difference, in_fp32.at(name) + bound) << layout.text() << ": " << name;
        if (largest > 0) largest_rounding = std::max(largest_rounding, difference / largest);
      }
      EXPECT_GT(largest_rounding, kBf16Step / 8) << layout.text() << ": nothing travelled in bf16";
    }
  }
}

// ---- Gradient buffers in bf16 ----

DataParallelKind narrow(const DataParallelKind& kind) {
  return {kind.name + " with gradients in bf16",
          [kind](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            for (Parameter* parameter : model.parameters()) parameter->narrow_grad();
            if (kind.make) return kind.make(model, groups);
            return std::make_unique<GradBuffer>(model.parameters(), groups, GradBufferOptions{});
          }};
}

// The buffer is rounded once a contribution and once a rank, for every kind of product and layout.
TEST(Bf16, NarrowGradientsAreThoseOfFp32BuffersRounded) {
  const TinyRun dense{.is_tied = true, .num_layers = 4}, eight_bits{.num_layers = 2, .fp8_format = "hybrid"};
  const TinyRun experts{.family = "mixtral"}, t5{.family = "t5"}, bert{.family = "bert", .is_masked = true};
  const std::pair<Layout, DataParallelKind> cases[] = {
      {{.dp = 2, .micro_batch = 2, .task = dense}, {}},
      {{.dp = 2, .micro_batch = 2, .task = dense}, zero1()},
      {{.dp = 4, .micro_batch = 1, .task = dense}, fsdp()},
      {{.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = dense}, zero1()},
      {{.pp = 2, .micro_batch = 2, .task = dense, .pipeline = {.pp_algorithm = "zero-bubble"}}, {}},
      {{.dp = 2, .micro_batch = 2, .task = eight_bits}, fsdp()},
      {{.dp = 2, .micro_batch = 2, .task = experts, .ep = 2}, zero1()},
      {{.dp = 2, .micro_batch = 2, .task = t5}, fsdp()},
      {{.dp = 2, .micro_batch = 2, .task = bert}, {}},
  };
  for (auto [layout, kind] : cases) {
    layout.data_parallel = kind;
    const std::vector<RankOutcome> wide = run_layout(layout, kFusedBf16, 1);
    layout.data_parallel = narrow(kind);
    const std::vector<RankOutcome> found = run_layout(layout, kFusedBf16, 1);
    double largest_rounding = 0;
    for (size_t r = 0; r < wide.size(); ++r) {
      EXPECT_EQ(found[r].losses, wide[r].losses) << layout.text();
      for (const auto& [name, expected] : wide[r].gradients) {
        const auto of_held = [&](const Holding& holding) {
          const at::Tensor value = holding.value.to(at::kDouble);
          return at::where(holding.is_held, value, at::zeros_like(value));
        };
        const at::Tensor actual = of_held(found[r].gradients.at(name));
        EXPECT_TRUE(at::equal(actual, actual.to(at::kBFloat16).to(at::kDouble))) << layout.text() << ": " << name;
        const at::Tensor held = of_held(expected);
        const double largest = held.abs().max().item<double>();
        // At most sixteen contributions of rows, uses and ranks, half a step each at the size of the largest sum.
        const double difference = (actual - held).abs().max().item<double>();
        EXPECT_LE(difference, 16 * 0.5 * kBf16Step * largest) << layout.text() << ": " << name;
        if (largest > 0) largest_rounding = std::max(largest_rounding, difference / largest);
      }
    }
    EXPECT_GT(largest_rounding, kBf16Step / 16) << layout.text() << ": nothing was rounded";
  }
}

}  // namespace
}  // namespace megalith
