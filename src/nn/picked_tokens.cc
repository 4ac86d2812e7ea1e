// See picked_tokens.h.
#include "nn/picked_tokens.h"

#include <ATen/ATen.h>

#include "comm/distribution.h"
#include "comm/group.h"
#include "nn/function.h"

namespace megalith {
namespace {

// A rank's tokens among the picked ones: rows of its x, and (b, 1) where they are its own.
struct Local {
  at::Tensor rows, is_here;

  Local(const at::Tensor& index, int64_t num_local, const Group& tp) {
    const at::Tensor local = index - num_local * tp.rank();
    is_here = local.ge(0).bitwise_and(local.lt(num_local)).unsqueeze(1);
    rows = local.clamp(0, num_local - 1);
  }
};

// (b) as indices of rows of so many columns. index_select() has no meta kernel.
at::Tensor of_columns(const at::Tensor& rows, int64_t columns) { return rows.unsqueeze(1).expand({-1, columns}); }

// Each rank contributes its own, and the sum is whole on all.
at::Tensor compute(const at::Tensor& x, const at::Tensor& index, Group& tp) {
  const Local local(index, x.size(0), tp);
  at::Tensor picked = x.gather(0, of_columns(local.rows, x.size(1))).masked_fill(local.is_here.eq(0), 0);
  tp.all_reduce(picked, ReduceOp::kSum, "picked tokens").wait();
  return picked;
}

}  // namespace

struct PickedTokensFunction : torch::autograd::Function<PickedTokensFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& index,
                            Group* tp) {
    node->save_for_backward({index});
    hold(node, std::pair(x.size(0), tp));
    return compute(x, index, *tp);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto [num_local, tp] = held<std::pair<int64_t, Group*>>(node);
    const Local local(node->get_saved_variables()[0], num_local, *tp);
    const at::Tensor dx = at::zeros({num_local, gradients[0].size(1)}, gradients[0].options());
    const at::Tensor own = as_cut(gradients[0].masked_fill(local.is_here.eq(0), 0), *tp);
    return {dx.scatter_add(0, of_columns(local.rows, dx.size(1)), own), {}, {}};
  }
};

at::Tensor picked_tokens(const at::Tensor& x, const at::Tensor& index, Group* tp) {
  if (tp == nullptr) return x.gather(0, of_columns(index, x.size(1)));
  return is_recording({x}) ? PickedTokensFunction::apply(x, index, tp) : compute(x.detach(), index, *tp);
}

}  // namespace megalith
