// The layouts of rows.txt, as `megalith doctor --parallel` checks those of users.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer_options.h"
#include "verify/parallel_check.h"

namespace megalith::test {

// A configuration and its toy on exactly the ranks that the row names. What toys set aside (eight bits, four-bit
// weights, gradients in bf16) is put back in the float64 pass.
class LayoutRow {
 public:
  explicit LayoutRow(std::string words);

  const std::string& text() const { return text_; }
  bool has_experts() const { return user_->config.model.has_experts(); }
  std::optional<OptimizerKind> rule() const;  // whose ranks exchange more than gradients and weights

  // A check that has computed nothing yet.
  std::unique_ptr<ParallelCheck> fresh_check() const;

  // Three steps in float64, or one with these operators in this dtype. May be changed before they run.
  Resolved& layout() { return *toy().layout; }
  Resolved& one_rank() { return *toy().one_rank; }
  void compute_in(at::ScalarType dtype, Kernels kernels);
  // The single rank has the microbatches of the ranks, one after another.
  void read_as_the_ranks();
  // The single rank's numbers, kept.
  const RankOutcome& expected();
  void forget_expected() { expected_.reset(); }
  // The first difference from the single rank, or the error that ended the run; "" without.
  std::string difference(const CheckHooks& hooks = {}, double tolerance = 1e-9);

 private:
  ToyConfig& toy() { return check_->toy(); }

  std::string text_;
  std::unique_ptr<Resolved> user_;
  ToyWorld world_;
  std::unique_ptr<ParallelCheck> check_;
  std::optional<RankOutcome> expected_;
};

// The rows of a section, or, with "!", those of all sections that seeded mistakes are tried on.
std::vector<LayoutRow> rows_of(std::string_view section);

}  // namespace megalith::test
