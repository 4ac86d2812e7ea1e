// The Newton-Schulz iteration that makes a matrix nearly orthogonal: with the singular value decomposition U S V^T, it
// gives U S' V^T, where S' lies around 1. Only matrix products, so it runs where and as fast as they do.
//
//   X = M / |M|;   each step, with its a, b, c:   A = X X^T;   X = a X + (b A + c A A) X
//
// A matrix with more rows than columns is iterated as its transposed: A is the smaller product then.
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

// The names of the published sets of coefficients: "simple", "quintic", …
std::vector<std::string> newton_schulz_words();

// The coefficients of each of num_steps steps. A set that is shorter begins again, or repeats its last step where it
// was derived as a sequence that converges. InternalError for a name that is not one of the words.
std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view coefficient_type, int64_t num_steps);

// matrix (r, c) of any floating dtype -> (r, c) of that dtype, and computed in it: bf16 is enough for an update.
// The zero matrix gives zeros. Values do not depend on the size of the elements, as far as the dtype has them.
at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps);

}  // namespace megalith
