// The Newton-Schulz iteration, which makes a matrix nearly orthogonal: of U S V^T it gives U S' V^T with S' around 1,
// by matrix products only.
//
//   X = M / |M|;   each step, with its a, b, c:   A = X X^T;   X = a X + (b A + c A A) X
//
// A matrix with more rows than columns is transposed first: A is the smaller product then.
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

// The published coefficient sets: "simple", "quintic", …
std::vector<std::string> newton_schulz_words();

// Coefficients per step. A shorter set restarts, or repeats its last step if it is a converging sequence. InternalError
// for unknown names.
std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view coefficient_type, int64_t num_steps);

// matrix (r, c), any floating dtype -> (r, c), computed in that dtype (bf16 suffices for an update); zero gives zero,
// and scale does not matter.
at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps);

}  // namespace megalith
