// In ATen's operators.
#include <ATen/ATen.h>

#include <vector>

#include "ops/grouped_linear/grouped_linear.h"

namespace megalith::ops {
namespace reference {
namespace {

// body(j, first row, number of rows); synchronises if offsets are on a device.
template <typename Body>
void for_each_expert(const at::Tensor& offsets, Body&& body) {
  const at::Tensor on_cpu = offsets.cpu();
  const auto* rows = on_cpu.const_data_ptr<int64_t>();
  for (int64_t j = 0; j + 1 < on_cpu.size(0); ++j) body(j, rows[j], rows[j + 1] - rows[j]);
}

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
    // A bf16 product would be rounded before it is summed.
    const auto wide = [&](const at::Tensor& rows) { return rows.narrow(0, first, count).to(dw.scalar_type()); };
    const at::Tensor product = at::mm(wide(dy).t(), wide(x));
    if (accumulate)
      dw.select(0, j).add_(product);
    else
      dw.select(0, j).copy_(product);
  });
}

}  // namespace
}  // namespace reference

constexpr GroupedLinearTable kGroupedLinearReference{.forward = reference::grouped_linear_forward,
                                                     .dgrad = reference::grouped_linear_dgrad,
                                                     .wgrad_ = reference::grouped_linear_wgrad_};

}  // namespace megalith::ops
