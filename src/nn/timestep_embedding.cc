#include "nn/timestep_embedding.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/error.h"

namespace megalith {

at::Tensor timestep_embedding(const at::Tensor& t, int64_t channels, at::ScalarType dtype) {
  MEGALITH_CHECK(channels % 2 == 0, "{} channels", channels);
  constexpr double kSteps = 1000, kSlowest = 10000;
  const int64_t half = channels / 2;
  const at::Tensor exponents = at::arange(half, t.options()) * (-std::log(kSlowest) / static_cast<double>(half));
  const at::Tensor angles = (t * kSteps).unsqueeze(1) * exponents.exp().unsqueeze(0);
  return at::cat({angles.cos(), angles.sin()}, 1).to(dtype);
}

VectorEmbedding::VectorEmbedding(const LayerContext& context, const std::string& name, int64_t in_features,
                                 int64_t hidden, double init_std)
    : first_(context, name + ".linear_1", in_features, hidden, {.has_bias = true, .init_std = init_std}),
      second_(context, name + ".linear_2", hidden, hidden, {.has_bias = true, .init_std = init_std}) {
  register_module(first_);
  register_module(second_);
}

at::Tensor VectorEmbedding::forward(const at::Tensor& x) { return second_.forward(at::silu(first_.forward(x))); }

}  // namespace megalith
