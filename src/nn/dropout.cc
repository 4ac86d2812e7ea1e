#include "nn/dropout.h"

#include <ATen/ATen.h>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "ops/dropout/dropout.h"

namespace megalith {

HiddenDropout::HiddenDropout(const LayerContext& context, const std::string& name, double p)
    : p_(p),
      key_(make_philox_key(context.seed, "dropout." + name)),
      kernels_(context.kernels),
      tp_rank_(context.is_sequence_parallel ? context.groups->tp->rank() : 0) {}

at::Tensor HiddenDropout::forward(const at::Tensor& x, const ForwardContext& forward) const {
  if (p_ == 0 || !forward.is_training) return x;
  MEGALITH_CHECK(forward.row_ids.defined(), "dropout needs the global numbers of the tokens");
  const at::Tensor row_ids = forward.row_ids.reshape({-1}).narrow(0, tp_rank_ * x.size(0), x.size(0));
  return ops::dropout(x, row_ids, 0, p_, key_, kernels_);
}

}  // namespace megalith
