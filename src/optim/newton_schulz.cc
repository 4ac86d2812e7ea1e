#include "optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

struct CoefficientSet {
  std::string_view word;
  bool repeats_last;  // false: restarts
  std::vector<NewtonSchulzStep> steps;
};

const std::vector<CoefficientSet>& coefficient_sets() {
  static const std::vector<CoefficientSet> sets = {
      // https://kellerjordan.github.io/posts/muon/
      {"simple", false, {{3.4445, -4.7750, 2.0315}}},
      // https://leloykun.github.io/ponder/muon-opt-coeffs/
      {"quintic",
       false,
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      // Amsel et al. 2025, arXiv:2505.16932, with its safety factor of 1.01
      {"polar_express",
       true,
       {{8.2051, -22.9019, 16.4607},
        {4.0664, -2.8612, 0.5184},
        {3.9096, -2.8234, 0.5250},
        {3.2856, -2.4153, 0.4853},
        {2.2779, -1.6198, 0.3985},
        {1.8726, -1.2307, 0.3585},
        {1.8564, -1.2132, 0.3568},
        {1.8750, -1.2500, 0.3750}}},
      // Grishina et al. 2025, arXiv:2506.10935
      {"cans",
       true,
       {{8.4703, -25.1081, 18.6293},
        {4.1828, -3.1087, 0.5806},
        {3.9619, -2.9541, 0.5630},
        {3.2866, -2.4647, 0.5074},
        {2.2737, -1.6447, 0.4162}}},
  };
  return sets;
}

// Keeps the zero matrix finite; far below any gradient's norm.
constexpr double kLeastNorm = 1e-15;

}  // namespace

std::vector<std::string> newton_schulz_words() {
  std::vector<std::string> words;
  for (const CoefficientSet& set : coefficient_sets()) words.emplace_back(set.word);
  return words;
}

std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view coefficient_type, int64_t num_steps) {
  const auto& sets = coefficient_sets();
  const auto set =
      std::find_if(sets.begin(), sets.end(), [&](const CoefficientSet& one) { return one.word == coefficient_type; });
  MEGALITH_CHECK(set != sets.end(), "no Newton-Schulz coefficients are called '{}'", coefficient_type);
  std::vector<NewtonSchulzStep> steps;
  for (size_t i = 0; i < static_cast<size_t>(num_steps); ++i) {
    const size_t size = set->steps.size();
    steps.push_back(set->steps[set->repeats_last ? std::min(i, size - 1) : i % size]);
  }
  return steps;
}

at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps) {
  MEGALITH_CHECK(matrix.dim() == 2, "a tensor with {} dims is no matrix", matrix.dim());
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = is_tall ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(kLeastNorm);
  for (const auto& [a, b, c] : steps) {
    const at::Tensor gram = x.matmul(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return is_tall ? x.t() : x;
}

}  // namespace megalith
