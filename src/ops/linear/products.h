// A linear layer's products into given memory, with ops/linear's arguments, checked; results may be strided in t.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/linear/kernel.h"

namespace megalith::ops::cpu {

// bf16 products of at least 64 rows, columns and terms are ours, which do not depend on the number of threads.
bool has_own_bf16_products();

void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w);

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

// c (m, n) is fp32, this processor's products are ours (device/own_products.h), and packing is worth it.
bool takes_float_product(const at::Tensor& c, int64_t k);

// c (m, n) = a b for a (m, k) and b (k, n), or their transposes; all fp32 with dense rows. Bias and accumulate are the
// caller's to set.
FloatProduct float_product(const at::Tensor& c, const at::Tensor& a, bool a_is_transposed, const at::Tensor& b,
                           bool b_is_transposed);

// Cuts all into tasks and runs them side by side, by our kernel, on every processor. No size is 0. Results do not
// depend on the number of threads.
void run_float_products(std::vector<FloatProduct> products);

}  // namespace megalith::ops::cpu
