#include "nn/embedding_noise.h"

#include <ATen/ATen.h>

#include <cmath>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "ops/jitter/jitter.h"

namespace megalith {

EmbeddingNoise::EmbeddingNoise(const LayerContext& context, const std::string& name)
    : alpha_(context.embedding_noise),
      key_(make_philox_key(context.seed, "neftune." + name)),
      kernels_(context.kernels),
      tp_rank_(context.is_sequence_parallel ? context.groups->tp->rank() : 0) {}

at::Tensor EmbeddingNoise::forward(const at::Tensor& x, const ForwardContext& forward) const {
  if (alpha_ == 0 || !forward.is_training) return x;
  MEGALITH_CHECK(forward.row_ids.defined(), "noise in the embeddings needs the global numbers of the tokens");
  const at::Tensor row_ids = forward.row_ids.reshape({-1}).narrow(0, tp_rank_ * x.size(0), x.size(0));
  const int64_t length = forward.row_length > 0 ? forward.row_length : forward.s;
  const double bound = alpha_ / std::sqrt(static_cast<double>(length) * static_cast<double>(x.size(1)));
  // Jitter by a half of twice the bound, around it.
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor middle = at::full(x.sizes(), 2 * bound, x.options().dtype(wide).requires_grad(false));
  const at::Tensor noise = ops::jitter(middle, row_ids, 0.5, key_, kernels_).sub_(2 * bound);
  return x + noise.to(x.scalar_type());
}

}  // namespace megalith
