// The definition of the tokens' permutation, in ATen's operators. Nothing here waits for a device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith::ops {
namespace reference {
namespace {

// Rows of x; zeros where the map says -1.
at::Tensor rows_or_zero(const at::Tensor& x, const at::Tensor& map) {
  if (x.size(0) == 0) return at::zeros({map.numel(), x.size(1)}, x.options());
  const at::Tensor flat = map.reshape(-1);
  return x.index_select(0, flat.clamp_min(0)).masked_fill((flat < 0).unsqueeze(1), 0);
}

// (t, k, h) in the dtype of sums
at::Tensor chosen_rows(const at::Tensor& y, const at::Tensor& slots) {
  return rows_or_zero(y, slots).to(wide_dtype(y.scalar_type())).view({slots.size(0), slots.size(1), y.size(1)});
}

ExpertOrder sort_by_expert(const at::Tensor& experts, const at::Tensor& keep, int64_t num_experts) {
  const int64_t num_pairs = experts.numel();
  // Dropped pairs go behind the last expert's.
  const at::Tensor dropped = keep.defined() ? keep.logical_not() : at::zeros_like(experts, at::kBool);
  const at::Tensor key = experts.masked_fill(dropped, num_experts).view(-1);
  const auto [sorted, order] = at::sort(key, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor offsets = at::searchsorted(sorted, at::arange(num_experts + 1, experts.options()));
  const at::Tensor row = at::arange(num_pairs, experts.options());
  const at::Tensor is_padding = sorted == num_experts;
  const at::Tensor pairs = order.masked_fill(is_padding, -1);
  const at::Tensor token = experts.size(1) == 0 ? order : order.div(experts.size(1), "floor");
  const at::Tensor slots = at::empty_like(key).index_copy_(0, order, row.masked_fill(is_padding, -1));
  return {offsets.diff(), offsets, pairs, token.masked_fill(is_padding, -1), slots.view(experts.sizes())};
}

at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& source) { return rows_or_zero(x, source); }

at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights) {
  at::Tensor rows = chosen_rows(y, slots);
  if (weights.defined()) rows = rows * weights.unsqueeze(-1);
  return rows.sum(1).to(y.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights) {
  const at::Tensor dweights = (chosen_rows(y, slots) * dout.to(weights.scalar_type()).unsqueeze(1)).sum(2);
  // Dropped pairs write to a row behind the last one.
  const int64_t n = y.size(0);
  const at::Tensor rows = slots.masked_fill(slots < 0, n).view(-1);
  const at::Tensor row_weight = at::zeros({n + 1}, weights.options()).index_copy_(0, rows, weights.reshape(-1));
  const at::Tensor dy = rows_or_zero(dout, source).to(weights.scalar_type()) * row_weight.narrow(0, 0, n).unsqueeze(1);
  return {dy.to(y.scalar_type()), dweights};
}

}  // namespace
}  // namespace reference

constexpr TokenPermutationTable kTokenPermutationReference{
    .sort_by_expert = reference::sort_by_expert,
    .permute_tokens = reference::permute_tokens,
    .combine_tokens = reference::combine_tokens,
    .combine_tokens_backward = reference::combine_tokens_backward};

}  // namespace megalith::ops
