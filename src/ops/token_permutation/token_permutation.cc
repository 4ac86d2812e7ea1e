#include "ops/token_permutation/token_permutation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/token_permutation/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_token_rows(const char* op, const Argument& argument) {
  check_floating(op, argument);
  check_rows(op, argument);
}

// A map to `num_rows` rows: numbers in [-1, num_rows), read on the CPU only.
void check_map(const char* op, const Argument& map, int64_t rank, int64_t num_rows) {
  check_dtype(op, map, at::kLong);
  check_rank(op, map, rank);
  check_contiguous(op, map);
  if (!map.tensor.is_cpu()) return;
  const auto* rows = map.tensor.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < map.tensor.numel(); ++i) {
    if (rows[i] >= -1 && rows[i] < num_rows) continue;
    throw UserError(fmt::format("{}: {} points to row {}, but there are {}", op, map.name, rows[i], num_rows),
                    "take both maps from sort_by_expert");
  }
}

void check_combine(const char* op, const Tensor& y, const Tensor& slots, const Tensor& weights) {
  check_token_rows(op, {"y", y});
  check_map(op, {"slots", slots}, 2, y.size(0));
  check_devices(op, {{"y", y}, {"slots", slots}});
  if (weights.defined()) {
    check_dense(op, {"weights", weights}, slots.sizes(), wide_dtype(y.scalar_type()), {"y", y});
  }
}

void check_experts(const Tensor& experts, int64_t num_experts, const Tensor& keep) {
  constexpr const char* kOp = "sort_by_expert";
  check_dtype(kOp, {"experts", experts}, at::kLong);
  check_rank(kOp, {"experts", experts}, 2);
  check_contiguous(kOp, {"experts", experts});
  if (keep.defined()) check_dense(kOp, {"keep", keep}, experts.sizes(), at::kBool, {"experts", experts});
  if (!experts.is_cpu()) return;
  const auto* chosen = experts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < experts.numel(); ++i) {
    if (chosen[i] >= 0 && chosen[i] < num_experts) continue;
    throw UserError(
        fmt::format("{}: token {} chose expert {}, but there are {}", kOp, i / experts.size(1), chosen[i], num_experts),
        "expert numbers begin with 0");
  }
}

ExpertOrder empty_expert_order(const Tensor& experts, const Tensor& /*keep*/, int64_t num_experts,
                               int64_t rows_per_expert) {
  const auto numbers = [&](int64_t n) { return at::empty({n}, experts.options()); };
  const int64_t rows = rows_per_expert < 0 ? experts.numel() : num_experts * rows_per_expert;
  return {numbers(num_experts), numbers(num_experts + 1), numbers(rows), numbers(rows),
          at::empty(experts.sizes(), experts.options())};
}

// Counts, then places every pair after its expert's earlier ones.
ExpertOrder sort_by_expert_on_cpu(const Tensor& experts, const Tensor& keep, int64_t num_experts,
                                  int64_t rows_per_expert) {
  const ExpertOrder order = empty_expert_order(experts, keep, num_experts, rows_per_expert);
  const bool is_padded = rows_per_expert >= 0;
  const auto data = [](const Tensor& t) { return t.mutable_data_ptr<int64_t>(); };
  int64_t *counts = data(order.counts), *offsets = data(order.offsets), *pairs = data(order.pairs);
  int64_t *source = data(order.source), *slots = data(order.slots);
  const int64_t num_pairs = experts.numel();
  const auto* expert = experts.const_data_ptr<int64_t>();
  const bool* kept = keep.defined() ? keep.const_data_ptr<bool>() : nullptr;
  std::fill_n(counts, num_experts, 0);
  for (int64_t p = 0; p < num_pairs; ++p) {
    if (kept == nullptr || kept[p]) ++counts[expert[p]];
  }
  offsets[0] = 0;
  for (int64_t j = 0; j < num_experts; ++j) offsets[j + 1] = offsets[j] + (is_padded ? rows_per_expert : counts[j]);
  std::vector<int64_t> next(offsets, offsets + num_experts);
  std::fill_n(pairs, order.pairs.numel(), -1);
  std::fill_n(source, order.source.numel(), -1);
  for (int64_t p = 0; p < num_pairs; ++p) {
    slots[p] = -1;
    if (kept != nullptr && !kept[p]) continue;
    const int64_t row = next[static_cast<size_t>(expert[p])];
    if (row == offsets[expert[p] + 1]) continue;
    ++next[static_cast<size_t>(expert[p])];
    slots[p] = row;
    pairs[row] = p;
    source[row] = p / experts.size(1);
  }
  return order;
}

Tensor empty_rows(const Tensor& x, int64_t rows) { return at::empty({rows, x.size(1)}, x.options()); }

Tensor permute_tokens_on_cpu(const Tensor& x, const Tensor& source) {
  Tensor y = empty_rows(x, source.size(0));
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

template <void (*kLaunch)(const CombineTokens&, const Tensor& y)>
Tensor combine_tokens_by(const Tensor& y, const Tensor& slots, const Tensor& weights) {
  Tensor out = empty_rows(y, slots.size(0));
  kLaunch({.dtype = to_dtype(y.scalar_type()),
           .tokens = slots.size(0),
           .k = slots.size(1),
           .columns = y.size(1),
           .y = y.const_data_ptr(),
           .y_stride = y.stride(0),
           .slots = slots.const_data_ptr<int64_t>(),
           .weights = data_or_null(weights),
           .out = out.mutable_data_ptr()},
          y);
  return out;
}

std::tuple<Tensor, Tensor> empty_combine_gradients(const Tensor& /*dout*/, const Tensor& y, const Tensor& /*source*/,
                                                   const Tensor& /*slots*/, const Tensor& weights) {
  return {empty_rows(y, y.size(0)), at::empty_like(weights)};
}

template <void (*kLaunch)(const CombineTokensBackward&, const Tensor& y)>
std::tuple<Tensor, Tensor> combine_tokens_backward_by(const Tensor& dout, const Tensor& y, const Tensor& source,
                                                      const Tensor& slots, const Tensor& weights) {
  auto [dy, dweights] = empty_combine_gradients(dout, y, source, slots, weights);
  kLaunch({.dtype = to_dtype(y.scalar_type()),
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
           .dweights = dweights.mutable_data_ptr()},
          y);
  return {dy, dweights};
}

void run_combine_tokens(const CombineTokens& a, const Tensor& /*y*/) { MEGALITH_CPU_KERNEL(combine_tokens)(a); }
void run_combine_tokens_backward(const CombineTokensBackward& a, const Tensor& /*y*/) {
  MEGALITH_CPU_KERNEL(combine_tokens_backward)(a);
}

constexpr TokenPermutationTable kTokenPermutationCpu{
    .sort_by_expert = sort_by_expert_on_cpu,
    .permute_tokens = permute_tokens_on_cpu,
    .combine_tokens = combine_tokens_by<run_combine_tokens>,
    .combine_tokens_backward = combine_tokens_backward_by<run_combine_tokens_backward>};

#ifdef MEGALITH_GPU_KERNELS
ExpertOrder sort_by_expert_on_gpu(const Tensor& experts, const Tensor& keep, int64_t num_experts,
                                  int64_t rows_per_expert) {
  const ExpertOrder order = empty_expert_order(experts, keep, num_experts, rows_per_expert);
  const int64_t blocks = (experts.numel() + gpu::kSortedPairs - 1) / gpu::kSortedPairs;
  const Tensor scratch = at::empty({num_experts, blocks}, experts.options().dtype(at::kInt));
  const auto data = [](const Tensor& t) { return t.mutable_data_ptr<int64_t>(); };
  gpu::on_stream_of<&gpu::sort_by_expert, gpu::SortByExpert>(
      {.num_pairs = experts.numel(),
       .num_experts = num_experts,
       .k = experts.size(1),
       .rows_per_expert = rows_per_expert,
       .experts = experts.const_data_ptr<int64_t>(),
       .keep = keep.defined() ? keep.const_data_ptr<bool>() : nullptr,
       .counts = data(order.counts),
       .offsets = data(order.offsets),
       .pairs = data(order.pairs),
       .source = data(order.source),
       .slots = data(order.slots),
       .scratch = scratch.mutable_data_ptr<int32_t>()},
      experts);
  return order;
}

Tensor permute_tokens_on_gpu(const Tensor& x, const Tensor& source) {
  Tensor y = empty_rows(x, source.size(0));
  const auto element_bytes = static_cast<int64_t>(x.element_size());
  gpu::on_stream_of<&gpu::permute_tokens, gpu::PermuteTokens>({.rows = source.size(0),
                                                               .row_bytes = x.size(1) * element_bytes,
                                                               .element_bytes = element_bytes,
                                                               .x = x.const_data_ptr(),
                                                               .x_stride_bytes = x.stride(0) * element_bytes,
                                                               .source = source.const_data_ptr<int64_t>(),
                                                               .y = y.mutable_data_ptr()},
                                                              x);
  return y;
}

constexpr TokenPermutationTable kTokenPermutationGpu{
    .sort_by_expert = sort_by_expert_on_gpu,
    .permute_tokens = permute_tokens_on_gpu,
    .combine_tokens = combine_tokens_by<gpu::on_stream_of<&gpu::combine_tokens, CombineTokens>>,
    .combine_tokens_backward =
        combine_tokens_backward_by<gpu::on_stream_of<&gpu::combine_tokens_backward, CombineTokensBackward>>};
#endif

constexpr TokenPermutationTable kTokenPermutationMeta{
    .sort_by_expert = empty_expert_order,
    .permute_tokens = [](const Tensor& x, const Tensor& source) { return empty_rows(x, source.size(0)); },
    .combine_tokens = [](const Tensor& y, const Tensor& slots, const Tensor&) { return empty_rows(y, slots.size(0)); },
    .combine_tokens_backward = empty_combine_gradients};

}  // namespace

constexpr Operator<TokenPermutationTable> kTokenPermutation{.name = "token_permutation",
                                                            .reference = &kTokenPermutationReference,
                                                            .cpu = &kTokenPermutationCpu,
                                                            .meta = &kTokenPermutationMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                            .gpu = &kTokenPermutationGpu
#endif
};

ExpertOrder sort_all_by_expert(const Tensor& experts, int64_t num_experts, const Tensor& keep, Kernels kernels) {
  check_experts(experts, num_experts, keep);
  return kTokenPermutation.run("sort_by_expert", &TokenPermutationTable::sort_by_expert, kernels, experts, keep,
                               num_experts, /*rows_per_expert=*/int64_t{-1});
}

ExpertOrder sort_and_pad_by_expert(const Tensor& experts, int64_t num_experts, const Tensor& keep,
                                   int64_t rows_per_expert, Kernels kernels) {
  if (rows_per_expert < 0) {
    throw UserError(fmt::format("sort_by_expert: rows_per_expert is {}, but must be at least 0", rows_per_expert));
  }
  check_experts(experts, num_experts, keep);
  return kTokenPermutation.run("sort_by_expert", &TokenPermutationTable::sort_by_expert, kernels, experts, keep,
                               num_experts, rows_per_expert);
}

ExpertOrder sort_by_expert(const Tensor& experts, int64_t num_experts, const Tensor& keep, Kernels kernels) {
  ExpertOrder order = sort_all_by_expert(experts, num_experts, keep, kernels);
  if (keep.defined() && !experts.is_meta()) {
    const int64_t n = order.offsets.select(0, num_experts).item<int64_t>();
    order.pairs = order.pairs.narrow(0, 0, n);
    order.source = order.source.narrow(0, 0, n);
  }
  return order;
}

Tensor permute_tokens(const Tensor& x, const Tensor& source, Kernels kernels) {
  constexpr const char* kOp = "permute_tokens";
  check_token_rows(kOp, {"x", x});
  check_map(kOp, {"source", source}, 1, x.size(0));
  check_devices(kOp, {{"x", x}, {"source", source}});
  return kTokenPermutation.run(kOp, &TokenPermutationTable::permute_tokens, kernels, x, source);
}

Tensor combine_tokens(const Tensor& y, const Tensor& slots, const Tensor& weights, Kernels kernels) {
  check_combine("combine_tokens", y, slots, weights);
  return kTokenPermutation.run("combine_tokens", &TokenPermutationTable::combine_tokens, kernels, y, slots, weights);
}

std::tuple<Tensor, Tensor> combine_tokens_backward(const Tensor& dout, const Tensor& y, const Tensor& source,
                                                   const Tensor& slots, const Tensor& weights, Kernels kernels) {
  constexpr const char* kOp = "combine_tokens_backward";
  if (!weights.defined()) {
    throw UserError(fmt::format("{}: there are no weights", kOp),
                    "without weights the gradient is permute_tokens(dout, source)");
  }
  check_combine(kOp, y, slots, weights);
  check_map(kOp, {"source", source}, 1, slots.size(0));
  check_shape(kOp, {"source", source}, {y.size(0)});
  check_token_rows(kOp, {"dout", dout});
  check_dtype(kOp, {"dout", dout}, y.scalar_type());
  check_shape(kOp, {"dout", dout}, {slots.size(0), y.size(1)});
  check_devices(kOp, {{"y", y}, {"source", source}, {"dout", dout}});
  return kTokenPermutation.run(kOp, &TokenPermutationTable::combine_tokens_backward, kernels, dout, y, source, slots,
                               weights);
}

}  // namespace megalith::ops
