// The Newton-Schulz iteration, nearly orthogonalising by matrix products only: U S V^T becomes U S' V^T, S' around 1.
//
//   X = M / |M|;   each step, with its a, b, c:   A = X X^T;   X = a X + (b A + c A A) X
//
// Tall matrices are transposed first, for a smaller A.
// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Bernstein & Newhouse 2024, arXiv:2409.20325.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

using NewtonSchulzStep = std::array<double, 3>;  // a, b, c

// Published coefficient sets: "simple", "quintic", …
std::vector<std::string> newton_schulz_words();

// Coefficients per step. A shorter set restarts, or repeats its last step if converging. InternalError for unknown
// names.
std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view coefficient_type, int64_t num_steps);

// matrix (r, c), any floating dtype -> (r, c), computed in it (bf16 suffices for an update); zero gives zero, scale
// does not matter.
at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps);

}  // namespace megalith
