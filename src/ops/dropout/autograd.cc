// The gradient of dropout: the same elements are dropped again, so nothing but the row numbers is kept.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/dropout/dropout.h"
#include "ops/library.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start,
                            double p, int64_t key) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({row_ids});
    node->saved_data["column_start"] = column_start;
    node->saved_data["p"] = p;
    node->saved_data["key"] = key;
    return dropout(x, row_ids, column_start, p, static_cast<uint64_t>(key));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const at::Tensor dx =
        dropout(gradients[0], node->get_saved_variables()[0], node->saved_data["column_start"].toInt(),
                node->saved_data["p"].toDouble(), static_cast<uint64_t>(node->saved_data["key"].toInt()));
    return {dx, {}, {}, {}, {}};
  }
};

at::Tensor dropout_autograd(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p,
                            int64_t key) {
  return Dropout::apply(x, row_ids, column_start, p, key);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) { m.impl("dropout", TORCH_FN(megalith::ops::dropout_autograd)); }
