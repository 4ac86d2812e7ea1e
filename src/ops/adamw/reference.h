// AdamW composed from ATen; see ops/adamw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops::reference {

// The lists are of one length; model[i] is master[i] where there is no other copy.
void adamw_(at::TensorList model, at::TensorList master, at::TensorList grad, at::TensorList exp_avg,
            at::TensorList exp_avg_sq, at::ArrayRef<double> lr, at::ArrayRef<double> weight_decay,
            const at::Tensor& grad_scale, double beta1, double beta2, double eps, int64_t step);

}  // namespace megalith::ops::reference
