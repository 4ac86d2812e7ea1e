// What bfloat16 does to the numbers of a layout: which bits must not change, and what only rounding decides.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "layouts/rows.h"

namespace megalith {
namespace {

using namespace test;

constexpr double kBf16Step = 1.0 / 128;  // between neighbours of 1; rounding to the nearest costs half of it at most

LayoutRow row_in(at::ScalarType dtype, Kernels kernels, const std::string& words) {
  LayoutRow row(words);
  row.compute_in(dtype, kernels);
  return row;
}

LayoutRow bf16_row(const std::string& words) {
  LayoutRow row = row_in(at::kBFloat16, Kernels::kFused, words);
  row.read_as_the_ranks();
  return row;
}

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

// A stage computes what its layers compute on one rank, in the same order; a boundary rounds nothing that the layers do
// not round there.
TEST(Bf16, APipelineChangesNoBitOfAGradient) {
  for (const char* pipeline : {"pp2", "pp4", "pp2 virtual", "pp2 zero_bubble"}) {
    for (const bool is_tied : {false, true}) {
      const char* const tie = is_tied ? "" : "--untie_embeddings_and_output_weights";
      LayoutRow row = bf16_row(fmt::format("squared {} {}", pipeline, tie));
      const RankOutcome& expected = row.expected();
      const std::vector<RankOutcome> ranks = run_as_threads(row.layout());
      for (const RankOutcome& rank : ranks) EXPECT_EQ(rank.losses, expected.losses) << row.text();
      for (const auto& [name, difference] : gradient_differences(ranks, expected)) {
        // A tied table is added up at both ends of the pipeline, and the two sums are added, all in fp32.
        const bool has_two_sums = is_tied && name == "model.embed_tokens.weight";
        const double bound = has_two_sums ? 1e-6 * largest_element(expected.gradients.at(name)) : 0;
        EXPECT_LE(difference, bound) << row.text() << ": " << name;
      }
    }
  }
}

// Without rotary positions a key's bias adds one number to all scores of a query, and softmax does not see it: its
// gradient is 0, and what is computed is what rounding leaves of a sum that vanishes. Adam divides one moment of it by
// the root of the other, so that rounding moves the bias by up to lr. Two runs in bf16 that do not agree to the bit
// differ in it as in a random number: it is to be compared at the size of other gradients (CheckTolerance::floor).
TEST(Bf16, TheGradientOfAKeyBiasIsOnlyRounding) {
  LayoutRow row = row_in(at::kDouble, Kernels::kReference, "squared tp2");
  const RankOutcome exact = row.expected();
  row = bf16_row("squared tp2");
  const RankOutcome& rounded = row.expected();
  // Tensor parallelism rounds the parts of sums.
  const auto differences = gradient_differences(run_as_threads(row.layout()), rounded);
  for (int64_t layer = 0; layer < row.layout().config.model.num_layers; ++layer) {
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

// An expert's gradient is summed over the ranks that hold the expert, other gradients over all that share the data. So
// how often a gradient is rounded depends on the layout: not at all where the only copy of an expert is.
TEST(Bf16, ReductionInBf16RoundsExpertsAsOftenAsTheyHaveCopies) {
  for (const char* words : {"mixtral dp2 ep2", "deepseek dp4 ep4", "deepseek dp4 ep2", "mixtral dp4",
                            "mixtral tp2 dp2 sp ep2 etp1"}) {
    for (const char* sharding : {"", " --use_distributed_optimizer"}) {
      LayoutRow row = row_in(at::kFloat, Kernels::kReference, std::string(words) + sharding);
      const RankOutcome& expected = row.expected();
      const auto wide = gradient_differences(run_as_threads(row.layout()), expected);
      row.layout().derived.data_parallel.grad_reduce_in_bf16 = true;
      const auto narrow = gradient_differences(run_as_threads(row.layout()), expected);
      const ParallelOptions& sizes = row.layout().config.parallel;
      const int64_t dp = row.layout().derived.data_parallel_size, tp = sizes.tensor_model_parallel_size;
      const int64_t etp = sizes.expert_tensor_parallel_size.value_or(tp);
      const int64_t copies = tp * dp / (sizes.expert_model_parallel_size * etp);
      double largest_rounding = 0;
      for (const auto& [name, difference] : narrow) {
        const bool is_expert = name.find(".mlp.experts.") != std::string::npos;
        const int64_t summands = is_expert ? copies : dp;
        const double largest = largest_element(expected.gradients.at(name));
        // Each summand is rounded, and their sum: half a step each, at the size of the largest element.
        const double bound = summands == 1 ? 0 : static_cast<double>(summands + 1) * 0.5 * kBf16Step * largest;
        EXPECT_LE(difference, wide.at(name) + bound) << row.text() << ": " << name;
        if (largest > 0) largest_rounding = std::max(largest_rounding, difference / largest);
      }
      EXPECT_GT(largest_rounding, kBf16Step / 8) << row.text() << ": nothing travelled in bf16";
    }
  }
}

// ---- Gradient buffers in bf16 ----

// The buffer is rounded once a contribution and once a rank, for every kind of product and layout.
TEST(Bf16, NarrowGradientsAreThoseOfFp32BuffersRounded) {
  for (const char* words : {"llama dp2 two", "llama dp2 zero two", "llama dp4 fsdp", "llama tp2 dp2 sp zero two",
                            "untied pp2 zero_bubble two", "untied hybrid dp2 fsdp two", "mixtral dp2 zero ep2 two",
                            "geglu dp2 fsdp", "bert dp2"}) {
    LayoutRow row = bf16_row(words);
    const std::vector<RankOutcome> wide = run_as_threads(row.layout());
    row.layout().derived.data_parallel.main_grads_dtype = GradDtype::kBf16;
    const std::vector<RankOutcome> found = run_as_threads(row.layout());
    double largest_rounding = 0;
    for (size_t r = 0; r < wide.size(); ++r) {
      EXPECT_EQ(found[r].losses, wide[r].losses) << row.text();
      for (const auto& [name, expected] : wide[r].gradients) {
        const auto of_held = [&](const Holding& holding) {
          const at::Tensor value = holding.value.to(at::kDouble);
          return at::where(holding.is_held, value, at::zeros_like(value));
        };
        const at::Tensor actual = of_held(found[r].gradients.at(name));
        EXPECT_TRUE(at::equal(actual, actual.to(at::kBFloat16).to(at::kDouble))) << row.text() << ": " << name;
        const at::Tensor held = of_held(expected);
        const double largest = held.abs().max().item<double>();
        // At most sixteen contributions of rows, uses and ranks, half a step each at the size of the largest sum.
        const double difference = (actual - held).abs().max().item<double>();
        EXPECT_LE(difference, 16 * 0.5 * kBf16Step * largest) << row.text() << ": " << name;
        if (largest > 0) largest_rounding = std::max(largest_rounding, difference / largest);
      }
    }
    EXPECT_GT(largest_rounding, kBf16Step / 16) << row.text() << ": nothing was rounded";
  }
}

}  // namespace
}  // namespace megalith
