#include "nn/dropout.h"

#include <ATen/ATen.h>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/function.h"
#include "ops/dropout/dropout.h"

namespace megalith {

// Backward draws the mask again: only row numbers are kept.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& row_ids,
                            int64_t column_start, double p, uint64_t key) {
    node->save_for_backward({row_ids});
    hold(node, std::tuple(column_start, p, key));
    return ops::dropout(x, row_ids, column_start, p, key);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto [column_start, p, key] = held<std::tuple<int64_t, double, uint64_t>>(node);
    return {ops::dropout(gradients[0], node->get_saved_variables()[0], column_start, p, key), {}, {}, {}, {}};
  }
};

at::Tensor dropped(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key,
                   Kernels kernels) {
  if (!is_recording({x}) || (kernels == Kernels::kReference && !x.is_meta()))
    return ops::dropout(x, row_ids, column_start, p, key, kernels);
  return DropoutFunction::apply(x, row_ids, column_start, p, key);
}

HiddenDropout::HiddenDropout(const LayerContext& context, const std::string& name, double p)
    : p_(p),
      key_(make_philox_key(context.seed, "dropout." + name)),
      kernels_(context.kernels),
      tp_rank_(context.is_sequence_parallel ? context.groups->tp->rank() : 0) {}

at::Tensor HiddenDropout::forward(const at::Tensor& x, const ForwardContext& forward) const {
  if (p_ == 0 || !forward.is_training) return x;
  MEGALITH_CHECK(forward.row_ids.defined(), "dropout needs the global numbers of the tokens");
  const at::Tensor row_ids = forward.row_ids.reshape({-1}).narrow(0, tp_rank_ * x.size(0), x.size(0));
  return dropped(x, row_ids, 0, p_, key_, kernels_);
}

}  // namespace megalith
