// An optimizer's step is not differentiated.
#include "ops/library.h"

TORCH_LIBRARY_IMPL(megalith, Autograd, m) { m.impl("adamw_", megalith::ops::not_differentiable()); }
