// Interface of the tokens' way to their experts: checks the arguments, then calls the dispatcher or the reference.
#include "ops/token_permutation/token_permutation.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/token_permutation/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def(
      "sort_by_expert(Tensor experts, Tensor? keep, int num_experts) -> (Tensor counts, Tensor offsets, Tensor pairs, "
      "Tensor source, Tensor slots)");
  m.def("permute_tokens(Tensor x, Tensor source, Tensor slots) -> Tensor");
  m.def("permute_tokens_forward(Tensor x, Tensor source) -> Tensor");
  m.def("combine_tokens(Tensor y, Tensor source, Tensor slots, Tensor? weights=None) -> Tensor");
  m.def("combine_tokens_forward(Tensor y, Tensor slots, Tensor? weights=None) -> Tensor");
  m.def(
      "combine_tokens_backward(Tensor dout, Tensor y, Tensor source, Tensor slots, Tensor weights) -> (Tensor dy, "
      "Tensor dweights)");
}

namespace megalith::ops {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
MaybeTensor maybe(const at::Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; }

void check_token_rows(const char* op, const Argument& argument) {
  check_floating(op, argument);
  check_rank(op, argument, 2);
  const at::Tensor& x = argument.tensor;
  if (x.stride(1) == 1 || x.size(1) <= 1 || x.numel() == 0) return;
  throw UserError(fmt::format("{}: rows of {} have stride {}, but must be contiguous", op, argument.name, x.stride(1)),
                  "call contiguous() first");
}

// A map to `num_rows` rows: numbers in [-1, num_rows), read on the CPU alone.
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

void check_combine(const char* op, const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights) {
  check_token_rows(op, {"y", y});
  check_map(op, {"slots", slots}, 2, y.size(0));
  check_devices(op, {{"y", y}, {"slots", slots}});
  if (!weights.defined()) return;
  check_dtype(op, {"weights", weights}, wide_dtype(y.scalar_type()));
  check_shape(op, {"weights", weights}, slots.sizes());
  check_contiguous(op, {"weights", weights});
  check_devices(op, {{"y", y}, {"weights", weights}});
}

void check_source(const char* op, const at::Tensor& source, const at::Tensor& y, int64_t num_tokens) {
  check_map(op, {"source", source}, 1, num_tokens);
  check_shape(op, {"source", source}, {y.size(0)});
  check_devices(op, {{"y", y}, {"source", source}});
}

void check_experts(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep) {
  constexpr const char* kOp = "sort_by_expert";
  check_dtype(kOp, {"experts", experts}, at::kLong);
  check_rank(kOp, {"experts", experts}, 2);
  check_contiguous(kOp, {"experts", experts});
  if (keep.defined()) {
    check_dtype(kOp, {"keep", keep}, at::kBool);
    check_shape(kOp, {"keep", keep}, experts.sizes());
    check_contiguous(kOp, {"keep", keep});
    check_devices(kOp, {{"experts", experts}, {"keep", keep}});
  }
  if (!experts.is_cpu()) return;
  const auto* chosen = experts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < experts.numel(); ++i) {
    if (chosen[i] >= 0 && chosen[i] < num_experts) continue;
    throw UserError(
        fmt::format("{}: token {} chose expert {}, but there are {}", kOp, i / experts.size(1), chosen[i], num_experts),
        "expert numbers begin with 0");
  }
}

}  // namespace

ExpertOrder sort_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep, Kernels kernels) {
  check_experts(experts, num_experts, keep);
  static const auto op =
      find_op<SortedPairs(const at::Tensor&, const MaybeTensor&, int64_t)>("megalith::sort_by_expert");
  auto [counts, offsets, pairs, source, slots] = kernels == Kernels::kReference
                                                     ? reference::sort_by_expert(experts, maybe(keep), num_experts)
                                                     : op.call(experts, maybe(keep), num_experts);
  // The operator leaves room for all pairs: how many are kept is only known to the device.
  if (keep.defined() && !experts.is_meta()) {
    const int64_t n = offsets.select(0, num_experts).item<int64_t>();
    pairs = pairs.narrow(0, 0, n);
    source = source.narrow(0, 0, n);
  }
  return {counts, offsets, pairs, source, slots};
}

at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& source, const at::Tensor& slots, Kernels kernels) {
  constexpr const char* kOp = "permute_tokens";
  check_token_rows(kOp, {"x", x});
  check_map(kOp, {"source", source}, 1, x.size(0));
  check_map(kOp, {"slots", slots}, 2, source.size(0));
  check_shape(kOp, {"slots", slots}, {x.size(0), slots.size(1)});
  check_devices(kOp, {{"x", x}, {"source", source}, {"slots", slots}});
  if (kernels == Kernels::kReference) return reference::permute_tokens_forward(x, source);
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>("megalith::permute_tokens");
  return op.call(x, source, slots);
}

at::Tensor permute_tokens_forward(const at::Tensor& x, const at::Tensor& source, Kernels kernels) {
  constexpr const char* kOp = "permute_tokens_forward";
  check_token_rows(kOp, {"x", x});
  check_map(kOp, {"source", source}, 1, x.size(0));
  check_devices(kOp, {{"x", x}, {"source", source}});
  if (kernels == Kernels::kReference) return reference::permute_tokens_forward(x, source);
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("megalith::permute_tokens_forward");
  return op.call(x, source);
}

at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& source, const at::Tensor& slots,
                          const at::Tensor& weights, Kernels kernels) {
  constexpr const char* kOp = "combine_tokens";
  check_combine(kOp, y, slots, weights);
  check_source(kOp, source, y, slots.size(0));
  if (kernels == Kernels::kReference) return reference::combine_tokens_forward(y, slots, maybe(weights));
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&)>(
          "megalith::combine_tokens");
  return op.call(y, source, slots, maybe(weights));
}

at::Tensor combine_tokens_forward(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights,
                                  Kernels kernels) {
  check_combine("combine_tokens_forward", y, slots, weights);
  if (kernels == Kernels::kReference) return reference::combine_tokens_forward(y, slots, maybe(weights));
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const MaybeTensor&)>("megalith::combine_tokens_forward");
  return op.call(y, slots, maybe(weights));
}

std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights, Kernels kernels) {
  constexpr const char* kOp = "combine_tokens_backward";
  if (!weights.defined()) {
    throw UserError(fmt::format("{}: there are no weights", kOp),
                    "without weights the gradient is permute_tokens_forward(dout, source)");
  }
  check_combine(kOp, y, slots, weights);
  check_source(kOp, source, y, slots.size(0));
  check_token_rows(kOp, {"dout", dout});
  check_dtype(kOp, {"dout", dout}, y.scalar_type());
  check_shape(kOp, {"dout", dout}, {slots.size(0), y.size(1)});
  check_devices(kOp, {{"y", y}, {"dout", dout}});
  if (kernels == Kernels::kReference) return reference::combine_tokens_backward(dout, y, source, slots, weights);
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "megalith::combine_tokens_backward");
  return op.call(dout, y, source, slots, weights);
}

}  // namespace megalith::ops
