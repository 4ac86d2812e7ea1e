// Muon's update is made of whole canonical matrices, whatever ranks hold of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/pieces.h"
#include "core/philox.h"
#include "layouts/forwarded_data_parallel.h"
#include "layouts/rows.h"

namespace megalith {
namespace {

using namespace test;

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

// In fp32 a run's gradients differ by rounding, which Newton-Schulz steps enlarge; the update itself does not. Given
// the same gradients the only difference left is the order in which the norm for clipping is summed.
TEST(MuonRows, UpdatesAgreeInFloat32GivenTheSameGradients) {
  const CheckHooks drawn{.change_data_parallel = [](std::unique_ptr<DataParallel> data, const BuiltModel& model,
                                                    const Groups&) -> std::unique_ptr<DataParallel> {
    return std::make_unique<DrawnGradients>(std::move(data), model);
  }};
  int num_rows = 0;
  for (LayoutRow& row : rows_of("Optimizers")) {
    if (row.rule() != OptimizerKind::kMuon) continue;
    ++num_rows;
    row.compute_in(at::kFloat, Kernels::kFused);
    row.layout().derived.train_iters = row.one_rank().derived.train_iters = 3;
    const RankOutcome expected = run_as_threads(row.one_rank(), drawn)[0];
    for (const RankOutcome& rank : run_as_threads(row.layout(), drawn)) {
      ASSERT_FALSE(rank.parameters.empty());
      for (const auto& [name, holding] : rank.parameters) {
        if (name.ends_with("e_score_correction_bias")) continue;  // moved by loads, not by the optimizer
        const at::Tensor& whole = expected.parameters.at(name).value;
        const at::Tensor difference = ((holding.value - whole) * holding.is_held).abs().max() / whole.abs().max();
        EXPECT_LE(difference.item<double>(), 1e-6) << row.text() << ": " << name;
      }
    }
  }
  EXPECT_GE(num_rows, 16);
}

}  // namespace
}  // namespace megalith
