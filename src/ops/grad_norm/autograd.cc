// The norm of gradients is not differentiated.
#include "ops/library.h"

TORCH_LIBRARY_IMPL(megalith, Autograd, m) { m.impl("squared_norm", megalith::ops::not_differentiable()); }
