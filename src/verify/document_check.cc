#include "verify/document_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megalith {

void uncouple_tokens(ModelConfig& config) {
  config.moe_router_load_balancing_type = RouterBalancing::kNone;
  config.moe_aux_loss_coeff = 0;
  config.moe_z_loss_coeff.reset();
  config.moe_expert_capacity_factor.reset();
}

namespace {

bool is_near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::abs(b); }

bool are_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](double x, double y) { return is_near(x, y, tolerance); });
}

double largest_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().to(at::kDouble).item<double>();
}

}  // namespace

std::string find_difference(const RankOutcome& first, const RankOutcome& second, double tolerance) {
  if (!are_near(first.losses, second.losses, tolerance)) return "the losses";
  double largest = 0;
  for (const auto& [name, holding] : first.gradients) largest = std::max(largest, largest_of(holding.value));
  for (const auto& [name, holding] : first.gradients) {
    const auto found = second.gradients.find(name);
    // Cancelling gradients carry large ones' rounding.
    const double scale = std::max(largest_of(holding.value), 1e-2 * largest);
    if (found == second.gradients.end() || !(largest_of(holding.value - found->second.value) <= tolerance * scale)) {
      return fmt::format("the gradient of {}", name);
    }
  }
  if (!are_near(first.grad_norms, second.grad_norms, tolerance)) return "the gradient norm";
  return "";
}

double document_tolerance(bool has_experts, at::ScalarType dtype) {
  if (!has_experts) return 0;
  // Rounded sums of some hundred terms; a leak changes the third digit.
  return dtype == at::kDouble ? 1e-12 : 1e-5;
}

std::string find_touching_documents(const std::function<std::vector<RankOutcome>(const SilentDocument&)>& run,
                                    int first_rank, double tolerance) {
  for (const int silent : {0, 1}) {
    const std::vector<RankOutcome> first = run({.index = silent, .draw = 0});
    const std::vector<RankOutcome> second = run({.index = silent, .draw = 1});
    for (size_t rank = 0; rank < first.size(); ++rank) {
      const std::string difference = find_difference(first[rank], second[rank], tolerance);
      if (difference.empty()) continue;
      return fmt::format("documents touch: on rank {}, other tokens in document {} of each row change {} of the rest",
                         first_rank + static_cast<int>(rank), silent + 1, difference);
    }
  }
  return "";
}

}  // namespace megalith
