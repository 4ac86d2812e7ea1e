// Cross entropy computes its gradients in the forward pass, so nothing here is differentiated by autograd.
#include "ops/library.h"

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("softmax_statistics", megalith::ops::not_differentiable());
  m.impl("cross_entropy_gradient_", megalith::ops::not_differentiable());
  m.impl("linear_cross_entropy_", megalith::ops::not_differentiable());
}
