// Does not synchronise.
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

// Each pair's token; -1 stays.
at::Tensor tokens_of(const at::Tensor& pairs, int64_t k) { return k == 0 ? pairs : pairs.div(k, "floor"); }

// Pads each expert to rows_per_expert.
ExpertOrder padded(const ExpertOrder& order, const at::Tensor& experts, int64_t rows_per_expert) {
  const int64_t num_experts = order.counts.size(0), num_rows = num_experts * rows_per_expert;
  const auto options = experts.options();
  const at::Tensor offsets = at::arange(num_experts + 1, options) * rows_per_expert;
  if (num_rows == 0 || experts.numel() == 0) {
    const at::Tensor none = at::full({num_rows}, -1, options);
    return {order.counts, offsets, none, none, at::full(experts.sizes(), -1, options)};
  }
  const at::Tensor slots = order.slots.view(-1), expert = experts.view(-1);
  const at::Tensor place = slots - order.offsets.index_select(0, expert);
  const at::Tensor is_lost = (slots < 0).logical_or(place >= rows_per_expert);
  const at::Tensor rows = expert * rows_per_expert + place;
  // Lost pairs write to an extra last row.
  const at::Tensor pairs = at::full({num_rows + 1}, -1, options)
                               .index_copy_(0, rows.masked_fill(is_lost, num_rows), at::arange(slots.size(0), options))
                               .narrow(0, 0, num_rows);
  return {order.counts, offsets, pairs, tokens_of(pairs, experts.size(1)),
          rows.masked_fill(is_lost, -1).view(experts.sizes())};
}

ExpertOrder sort_by_expert(const at::Tensor& experts, const at::Tensor& keep, int64_t num_experts,
                           int64_t rows_per_expert) {
  const int64_t num_pairs = experts.numel();
  // Dropped pairs sort after the last expert's.
  const at::Tensor dropped = keep.defined() ? keep.logical_not() : at::zeros_like(experts, at::kBool);
  const at::Tensor key = experts.masked_fill(dropped, num_experts).view(-1);
  const auto [sorted, order] = at::sort(key, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor offsets = at::searchsorted(sorted, at::arange(num_experts + 1, experts.options()));
  const at::Tensor row = at::arange(num_pairs, experts.options());
  const at::Tensor is_padding = sorted == num_experts;
  const at::Tensor pairs = order.masked_fill(is_padding, -1);
  const at::Tensor slots = at::empty_like(key).index_copy_(0, order, row.masked_fill(is_padding, -1));
  const ExpertOrder all{offsets.diff(), offsets, pairs, tokens_of(pairs, experts.size(1)), slots.view(experts.sizes())};
  return rows_per_expert < 0 ? all : padded(all, experts, rows_per_expert);
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
  // Dropped pairs write to an extra last row.
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
