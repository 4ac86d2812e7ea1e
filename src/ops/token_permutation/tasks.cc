// Registers the tokens' permutation for the CPU and for the meta device.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <vector>

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/token_permutation/kernel.h"
#include "ops/token_permutation/reference.h"

namespace megalith::ops::cpu {
namespace {

SortedPairs empty_order(const at::Tensor& experts, int64_t num_experts) {
  const auto numbers = [&](int64_t n) { return at::empty({n}, experts.options()); };
  return {numbers(num_experts), numbers(num_experts + 1), numbers(experts.numel()), numbers(experts.numel()),
          at::empty(experts.sizes(), experts.options())};
}

// Counts, then places every pair behind those of its expert that came before.
SortedPairs sort_by_expert(const at::Tensor& experts, const std::optional<at::Tensor>& keep, int64_t num_experts) {
  SortedPairs order = empty_order(experts, num_experts);
  const auto data = [](const at::Tensor& t) { return t.mutable_data_ptr<int64_t>(); };
  int64_t *counts = data(std::get<0>(order)), *offsets = data(std::get<1>(order)), *pairs = data(std::get<2>(order));
  int64_t *source = data(std::get<3>(order)), *slots = data(std::get<4>(order));
  const int64_t num_pairs = experts.numel();
  const auto* expert = experts.const_data_ptr<int64_t>();
  const bool* kept = keep.has_value() ? keep->const_data_ptr<bool>() : nullptr;
  std::fill_n(counts, num_experts, 0);
  for (int64_t p = 0; p < num_pairs; ++p) {
    if (kept == nullptr || kept[p]) ++counts[expert[p]];
  }
  offsets[0] = 0;
  for (int64_t j = 0; j < num_experts; ++j) offsets[j + 1] = offsets[j] + counts[j];
  std::vector<int64_t> next(offsets, offsets + num_experts);
  for (int64_t p = 0; p < num_pairs; ++p) {
    if (kept != nullptr && !kept[p]) {
      slots[p] = -1;
      continue;
    }
    const int64_t row = next[static_cast<size_t>(expert[p])]++;
    slots[p] = row;
    pairs[row] = p;
    source[row] = p / experts.size(1);
  }
  for (int64_t row = offsets[num_experts]; row < num_pairs; ++row) pairs[row] = source[row] = -1;
  return order;
}

at::Tensor empty_rows(const at::Tensor& x, int64_t rows) { return at::empty({rows, x.size(1)}, x.options()); }

at::Tensor permute_tokens_forward(const at::Tensor& x, const at::Tensor& source) {
  at::Tensor y = empty_rows(x, source.size(0));
  const auto* token = source.const_data_ptr<int64_t>();
  const auto row_bytes = static_cast<size_t>(x.size(1)) * x.element_size();
  const int64_t stride_bytes = x.stride(0) * static_cast<int64_t>(x.element_size());
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  constexpr int64_t kTaskBytes = 1 << 15;
  at::parallel_for(0, source.size(0), 1 + kTaskBytes / static_cast<int64_t>(row_bytes + 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       char* out = to + static_cast<size_t>(i) * row_bytes;
                       if (token[i] >= 0)
                         std::memcpy(out, from + token[i] * stride_bytes, row_bytes);
                       else
                         std::memset(out, 0, row_bytes);
                     }
                   });
  return y;
}

at::Tensor combine_tokens_forward(const at::Tensor& y, const at::Tensor& slots,
                                  const std::optional<at::Tensor>& weights) {
  at::Tensor out = empty_rows(y, slots.size(0));
  MEGALITH_CPU_KERNEL(combine_tokens)
  ({.dtype = to_dtype(y.scalar_type()),
    .tokens = slots.size(0),
    .k = slots.size(1),
    .columns = y.size(1),
    .y = y.const_data_ptr(),
    .y_stride = y.stride(0),
    .slots = slots.const_data_ptr<int64_t>(),
    .weights = weights.has_value() ? weights->const_data_ptr() : nullptr,
    .out = out.mutable_data_ptr()});
  return out;
}

std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights) {
  at::Tensor dy = empty_rows(y, y.size(0)), dweights = at::empty_like(weights);
  MEGALITH_CPU_KERNEL(combine_tokens_backward)
  ({.dtype = to_dtype(y.scalar_type()),
    .tokens = slots.size(0),
    .k = slots.size(1),
    .columns = y.size(1),
    .rows = y.size(0),
    .dout = dout.const_data_ptr(),
    .dout_stride = dout.stride(0),
    .y = y.const_data_ptr(),
    .y_stride = y.stride(0),
    .source = source.const_data_ptr<int64_t>(),
    .slots = slots.const_data_ptr<int64_t>(),
    .weights = weights.const_data_ptr(),
    .dy = dy.mutable_data_ptr(),
    .dweights = dweights.mutable_data_ptr()});
  return {dy, dweights};
}

at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& source, const at::Tensor&) {
  return permute_tokens_forward(x, source);
}

at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor&, const at::Tensor& slots,
                          const std::optional<at::Tensor>& weights) {
  return combine_tokens_forward(y, slots, weights);
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("sort_by_expert", TORCH_FN(cpu::sort_by_expert));
  m.impl("permute_tokens", TORCH_FN(cpu::permute_tokens));
  m.impl("permute_tokens_forward", TORCH_FN(cpu::permute_tokens_forward));
  m.impl("combine_tokens", TORCH_FN(cpu::combine_tokens));
  m.impl("combine_tokens_forward", TORCH_FN(cpu::combine_tokens_forward));
  m.impl("combine_tokens_backward", TORCH_FN(cpu::combine_tokens_backward));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  using MaybeTensor = std::optional<Tensor>;
  namespace cpu = megalith::ops::cpu;
  m.impl("sort_by_expert", [](const Tensor& experts, const MaybeTensor&, int64_t num_experts) {
    return cpu::empty_order(experts, num_experts);
  });
  m.impl("permute_tokens",
         [](const Tensor& x, const Tensor& source, const Tensor&) { return cpu::empty_rows(x, source.size(0)); });
  m.impl("permute_tokens_forward",
         [](const Tensor& x, const Tensor& source) { return cpu::empty_rows(x, source.size(0)); });
  m.impl("combine_tokens", [](const Tensor& y, const Tensor&, const Tensor& slots, const MaybeTensor&) {
    return cpu::empty_rows(y, slots.size(0));
  });
  m.impl("combine_tokens_forward",
         [](const Tensor& y, const Tensor& slots, const MaybeTensor&) { return cpu::empty_rows(y, slots.size(0)); });
  m.impl("combine_tokens_backward",
         [](const Tensor&, const Tensor& y, const Tensor&, const Tensor&, const Tensor& weights) {
           return std::make_tuple(cpu::empty_rows(y, y.size(0)), at::empty_like(weights));
         });
}
