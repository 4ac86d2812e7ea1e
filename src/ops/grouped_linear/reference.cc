// The definition of the experts' products, in ATen's operators.
#include "ops/grouped_linear/reference.h"

#include <ATen/ATen.h>

#include <vector>

#include "ops/library.h"

namespace megalith::ops::reference {
namespace {

// body(j, first row, number of rows) for each expert; waits for the device when offsets are there.
template <typename Body>
void for_each_expert(const at::Tensor& offsets, Body&& body) {
  const at::Tensor on_cpu = offsets.cpu();
  const auto* rows = on_cpu.const_data_ptr<int64_t>();
  for (int64_t j = 0; j + 1 < on_cpu.size(0); ++j) body(j, rows[j], rows[j + 1] - rows[j]);
}

}  // namespace

at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  std::vector<at::Tensor> parts;
  for_each_expert(offsets, [&](int64_t j, int64_t first, int64_t count) {
    parts.push_back(at::mm(x.narrow(0, first, count), w.select(0, j).t()));
  });
  return at::cat(parts, 0);
}

at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets) {
  std::vector<at::Tensor> parts;
  for_each_expert(offsets, [&](int64_t j, int64_t first, int64_t count) {
    parts.push_back(at::mm(dy.narrow(0, first, count), w.select(0, j)));
  });
  return at::cat(parts, 0);
}

void grouped_linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                           bool accumulate) {
  for_each_expert(offsets, [&](int64_t j, int64_t first, int64_t count) {
    // Widened before the product: a bf16 product would be rounded before it is summed.
    const auto wide = [&](const at::Tensor& rows) { return rows.narrow(0, first, count).to(dw.scalar_type()); };
    const at::Tensor product = at::mm(wide(dy).t(), wide(x));
    if (accumulate)
      dw.select(0, j).add_(product);
    else
      dw.select(0, j).copy_(product);
  });
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  namespace reference = megalith::ops::reference;
  m.impl("grouped_linear", TORCH_FN(reference::grouped_linear_forward));
  m.impl("grouped_linear_forward", TORCH_FN(reference::grouped_linear_forward));
  m.impl("grouped_linear_dgrad", TORCH_FN(reference::grouped_linear_dgrad));
  m.impl("grouped_linear_wgrad_", TORCH_FN(reference::grouped_linear_wgrad_));
}
