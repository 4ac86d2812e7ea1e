// Muon over every kind of layout against a single rank: its update is made of whole canonical matrices, whatever ranks
// hold of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/pieces.h"
#include "core/philox.h"
#include "layouts/forwarded_data_parallel.h"
#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> muon_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task, std::string optimizer = "muon") {
    if (layout.cp > 1) task.sequence = 8;
    task.optimizer = std::move(optimizer);
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun plain{}, tied{.is_tied = true, .has_qkv_bias = true}, twelve{.global_batch = 12};
  const TinyRun mixtral{.family = "mixtral"}, deepseek{.has_documents = true, .family = "deepseek"};
  const std::string joined = "muon, joined";
  // Slices of every matrix; as one matrix, q, k and v are slices of three kinds.
  add({.tp = 2, .micro_batch = 8}, plain);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4}, tied);
  add({.tp = 2, .micro_batch = 8}, tied, joined);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, plain, joined);
  // Replicas, shared sequences and pipelines exchange nothing, and must agree all the same.
  add({.micro_batch = 2}, plain);
  add({.dp = 4, .micro_batch = 2}, tied);
  add({.cp = 2, .micro_batch = 8}, plain);
  add({.pp = 2, .micro_batch = 2}, tied);
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 4}, tied);
  // Runs that begin and end within matrices, and between them; copies of the shards.
  add({.dp = 2, .micro_batch = 4, .data_parallel = zero1()}, plain);
  add({.dp = 3, .micro_batch = 4, .data_parallel = zero1()}, twelve, joined);
  add({.dp = 2, .micro_batch = 4, .data_parallel = zero1_between_matrices()}, plain);
  add({.dp = 4, .dp_replicate = 2, .micro_batch = 2, .data_parallel = zero1_between_matrices()}, tied);
  add({.tp = 2, .dp = 4, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1()}, plain);
  add({.tp = 2, .dp = 2, .micro_batch = 4, .data_parallel = zero1_between_matrices()}, tied, joined);
  add({.dp = 2, .cp = 2, .micro_batch = 4, .data_parallel = zero1()}, plain);
  add({.dp = 2, .pp = 2, .micro_batch = 2, .data_parallel = zero1_between_matrices()}, tied);
  add({.dp = 3, .micro_batch = 4, .data_parallel = fsdp()}, twelve);
  add({.dp = 4, .dp_replicate = 2, .micro_batch = 2, .data_parallel = fsdp()}, tied);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 4, .data_parallel = fsdp()}, plain, joined);
  add({.dp = 2, .cp = 2, .micro_batch = 4, .data_parallel = fsdp()}, plain);
  // Experts on ranks of their own, each cut over ranks, beside dense layers that are cut otherwise.
  add({.dp = 2, .micro_batch = 2, .ep = 2}, mixtral);
  add({.dp = 4, .micro_batch = 2, .ep = 2, .etp = 2}, deepseek);
  add({.tp = 2, .micro_batch = 2, .ep = 2, .etp = 1}, mixtral);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, deepseek);
  add({.dp = 4, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, deepseek);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = zero1_between_matrices(), .ep = 2, .etp = 1}, mixtral);
  add({.dp = 8, .dp_replicate = 2, .data_parallel = zero1_between_matrices(), .ep = 2}, mixtral);
  add({.dp = 2, .pp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, deepseek);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, mixtral);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .ep = 2, .etp = 1}, mixtral);
  add({.dp = 4, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .ep = 2}, deepseek);
  // Many matrices in one tensor.
  const TinyRun gpt_oss{.family = "gpt_oss"};
  add({.tp = 2, .dp = 2, .micro_batch = 2, .ep = 2, .etp = 2}, gpt_oss);
  add({.dp = 4, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, gpt_oss);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, gpt_oss);
  return list;
}

TEST(MuonMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  EXPECT_GE(muon_layouts().size(), 24U);
  expect_as_one_rank_in_float64(muon_layouts());
}

// The gradients of every layout become the same bits: drawn by canonical name, position and step.
class DrawnGradients : public ForwardedDataParallel {
 public:
  using ForwardedDataParallel::ForwardedDataParallel;

  void finish_step() override {
    inner_->finish_step();
    ++step_;
    for (const OwnedPart& part : inner_->parts()) {
      part.grad.zero_();
      for (const PieceView& view : piece_views(part.parameter->placement(), part.grad, part.range)) {
        const std::vector<int64_t> origin(view.piece.shape.size(), 0);
        view.tensor.copy_(slice_box(drawn(view.piece), view.piece.canonical, origin));
      }
    }
  }

 private:
  at::Tensor drawn(const Piece& piece) const {
    const at::Tensor whole = at::empty(piece.shape, at::kDouble);
    fill_normal(make_philox_key(static_cast<uint64_t>(step_), piece.name), 0, whole.mutable_data_ptr<double>(),
                static_cast<uint64_t>(whole.numel()));
    return whole;
  }

  int step_ = 0;
};

const Mistake kDrawnGradients{
    .name = "drawn gradients",
    .hooks = {.change_data_parallel = [](std::unique_ptr<DataParallel> data, const BuiltModel& model,
                                         const Groups&) -> std::unique_ptr<DataParallel> {
      return std::make_unique<DrawnGradients>(std::move(data), model);
    }}};

// In fp32 a run's gradients differ by rounding, which Newton-Schulz steps enlarge; the update itself does not. Given
// the same gradients the only difference left is the order in which the norm for clipping is summed.
TEST(MuonMatrix, UpdatesAgreeInFloat32GivenTheSameGradients) {
  constexpr int kSteps = 3;
  const Precision single{at::kFloat, Kernels::kFused};
  std::map<TinyRun, RankOutcome> one_rank;
  for (const Layout& layout : muon_layouts()) {
    RankOutcome& expected = one_rank[layout.task];
    if (expected.losses.empty()) {
      const Layout alone{.micro_batch = layout.task.global_batch, .task = layout.task};
      expected = run_layout(alone, single, kSteps, &kDrawnGradients)[0];
    }
    const std::vector<RankOutcome> ranks = run_layout(layout, single, kSteps, &kDrawnGradients);
    double worst = 0;
    for (const RankOutcome& rank : ranks) {
      ASSERT_FALSE(rank.parameters.empty());
      for (const auto& [name, holding] : rank.parameters) {
        if (name.ends_with("e_score_correction_bias")) continue;  // moved by loads, not by the optimizer
        const at::Tensor& whole = expected.parameters.at(name).value;
        const at::Tensor difference = ((holding.value - whole) * holding.is_held).abs().max() / whole.abs().max();
        EXPECT_LE(difference.item<double>(), 1e-6) << layout.text() << ": " << name;
        worst = std::max(worst, difference.item<double>());
      }
    }
    ::testing::Test::RecordProperty(layout.text(), fmt::format("{:.2g}", worst));
  }
}

// Without a bias of keys, whose gradient is zero but for rounding: its sign is not the layout's to keep.
TEST(LionMatrix, LayoutsTrainAsOneRankInFloat64) {
  const TinyRun lion{.optimizer = "lion"}, of_experts{.family = "mixtral", .optimizer = "lion"};
  const TinyRun of_twelve{.global_batch = 12, .optimizer = "lion"}, long_rows{.sequence = 8, .optimizer = "lion"};
  expect_as_one_rank_in_float64(
      {{.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .task = lion, .data_parallel = zero1()},
       {.dp = 3, .micro_batch = 4, .task = of_twelve, .data_parallel = fsdp()},
       {.cp = 2, .pp = 2, .micro_batch = 2, .task = long_rows},
       {.dp = 2, .pp = 2, .micro_batch = 2, .task = of_experts, .ep = 2}});
}

TEST(AdafactorMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  std::vector<Layout> layouts;
  for (Layout layout : muon_layouts()) {
    layout.task.optimizer = "adafactor";
    layouts.push_back(std::move(layout));
  }
  expect_as_one_rank_in_float64(layouts);
}

// Blocks of 256 are cut by slices, runs and both, and experts of one tensor have their own.
TEST(Adam8bitMatrix, LayoutsTrainAsOneRankInFloat64) {
  const TinyRun plain{.optimizer = "adam8bit"}, of_twelve{.global_batch = 12, .optimizer = "adam8bit"};
  const TinyRun tied{.is_tied = true, .has_qkv_bias = true, .optimizer = "adam8bit"};
  const TinyRun of_experts{.family = "mixtral", .optimizer = "adam8bit"};
  const TinyRun stacked{.family = "gpt_oss", .optimizer = "adam8bit"};
  expect_as_one_rank_in_float64(
      {{.tp = 4, .is_sequence_parallel = true, .micro_batch = 4, .task = tied},
       {.dp = 3, .micro_batch = 4, .task = of_twelve, .data_parallel = zero1()},
       {.tp = 2, .dp = 4, .is_sequence_parallel = true, .micro_batch = 2, .task = plain, .data_parallel = zero1()},
       {.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 4, .task = plain, .data_parallel = fsdp()},
       {.dp = 2, .pp = 2, .micro_batch = 2, .task = tied, .data_parallel = zero1()},
       {.tp = 2, .micro_batch = 2, .task = of_experts, .ep = 2, .etp = 1},
       {.tp = 2, .dp = 2, .micro_batch = 2, .task = stacked, .ep = 2, .etp = 2},
       {.dp = 4, .micro_batch = 2, .task = stacked, .data_parallel = zero1(), .ep = 2},
       {.tp = 2, .dp = 2, .micro_batch = 2, .task = stacked, .data_parallel = fsdp()}});
}

TEST(SgdMatrix, LayoutsTrainAsOneRankInFloat64) {
  const TinyRun sgd{.is_tied = true, .optimizer = "sgd"}, of_experts{.family = "mixtral", .optimizer = "sgd"};
  expect_as_one_rank_in_float64({{.tp = 2, .dp = 2, .micro_batch = 2, .task = sgd, .data_parallel = zero1()},
                                 {.dp = 2, .micro_batch = 4, .task = sgd, .data_parallel = fsdp()},
                                 {.dp = 2, .pp = 2, .micro_batch = 2, .task = of_experts, .ep = 2}});
}

}  // namespace
}  // namespace megalith
