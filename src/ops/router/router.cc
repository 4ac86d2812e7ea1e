#include "ops/router/router.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/router/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

// NaN is the largest.
template <typename T>
bool is_larger(T a, T b) {
  return a > b || (a != a && b == b);
}

// Indices of a row's k largest, kept in order in one pass.
template <typename T>
void find_largest_of_row(const T* row, int64_t columns, int64_t k, int64_t* found) {
  int64_t count = 0;
  for (int64_t i = 0; i < columns; ++i) {
    int64_t place = count;
    while (place > 0 && is_larger(row[i], row[found[place - 1]])) --place;
    if (place == k) continue;
    if (count < k) ++count;
    for (int64_t j = count - 1; j > place; --j) found[j] = found[j - 1];
    found[place] = i;
  }
}

Tensor find_largest_on_cpu(const Tensor& scores, int64_t k) {
  const Tensor rows = scores.contiguous();
  Tensor found = at::empty({rows.size(0), k}, rows.options().dtype(at::kLong));
  const int64_t columns = rows.size(1);
  auto* out = found.mutable_data_ptr<int64_t>();
  const auto find = [&](const auto* values) {
    at::parallel_for(0, rows.size(0), 1 + 8192 / (columns + 1), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        find_largest_of_row(values + row * columns, columns, k, out + row * k);
      }
    });
  };
  if (rows.scalar_type() == at::kDouble)
    find(rows.const_data_ptr<double>());
  else
    find(rows.const_data_ptr<float>());
  return found;
}

// The reference with a faster search: sorting whole rows would dominate.
RoutedTokens route_tokens_on_cpu(const Tensor& logits, const Tensor& bias, const Tensor& experts,
                                 const RouterForm& form, const RouterSums& sums) {
  return compose_routing(logits, bias, experts, form, sums, find_largest_on_cpu);
}
Tensor route_tokens_backward_on_cpu(const Tensor& logits, const Tensor& experts, const RoutedGradients& gradients,
                                    const RouterForm& form, const RouterSums& sums) {
  return kRouterReference.backward(logits, experts, gradients, form, sums);
}

RoutedTokens empty_routed_tokens(const Tensor& logits, const Tensor& /*bias*/, const Tensor& experts,
                                 const RouterForm& form, const RouterSums& sums) {
  const int64_t t = logits.size(0), e = logits.size(1), k = form.num_chosen;
  const auto integers = logits.options().dtype(at::kLong);
  RoutedTokens routed{.experts = experts.defined() ? experts : at::empty({t, k}, integers)};
  routed.weights = at::empty({t, k}, logits.options());
  if (sums.has_loads) routed.loads = at::empty({e}, integers);
  if (sums.has_balance) {
    routed.counts = at::empty({sums.balance_rows(), e}, logits.options());
    routed.score_sums = at::empty_like(routed.counts);
  }
  if (sums.has_z) routed.z_sum = at::empty({1}, logits.options());
  return routed;
}
Tensor empty_routed_gradient(const Tensor& logits, const Tensor& /*experts*/, const RoutedGradients& /*gradients*/,
                             const RouterForm& /*form*/, const RouterSums& /*sums*/) {
  return at::empty(logits.sizes(), logits.options());
}

constexpr RouterTable kRouterCpu{.forward = route_tokens_on_cpu, .backward = route_tokens_backward_on_cpu};
constexpr RouterTable kRouterMeta{.forward = empty_routed_tokens, .backward = empty_routed_gradient};

#ifdef MEGALITH_GPU_KERNELS
bool takes_kernel(const Tensor& logits, const RouterForm& form) {
  return logits.size(1) <= gpu::kMostRouterExperts && form.num_chosen <= gpu::kMostRouterChoices;
}

RoutedTokens route_tokens_on_gpu(const Tensor& logits, const Tensor& bias, const Tensor& experts,
                                 const RouterForm& form, const RouterSums& sums) {
  if (!takes_kernel(logits, form)) return kRouterReference.forward(logits, bias, experts, form, sums);
  RoutedTokens routed = empty_routed_tokens(logits, bias, experts, form, sums);
  const Tensor x = logits.contiguous();
  Tensor parts;
  if (sums.has_loads || sums.has_balance || sums.has_z) {
    parts = at::empty(
        {gpu::router_blocks_of_sequence(sums, x.size(0)) * sums.balance_rows(), gpu::router_columns(x.size(1))},
        x.options());
  }
  gpu::on_stream_of<&gpu::route_tokens, gpu::RouteTokens>(
      {.dtype = to_dtype(x.scalar_type()),
       .tokens = x.size(0),
       .num_experts = x.size(1),
       .form = form,
       .sums = sums,
       .logits = x.const_data_ptr(),
       .bias = data_or_null(bias),
       .given = experts.defined() ? experts.const_data_ptr<int64_t>() : nullptr,
       .experts = experts.defined() ? nullptr : routed.experts.mutable_data_ptr<int64_t>(),
       .weights = routed.weights.mutable_data_ptr(),
       .loads = sums.has_loads ? routed.loads.mutable_data_ptr<int64_t>() : nullptr,
       .counts = mutable_data_or_null(routed.counts),
       .score_sums = mutable_data_or_null(routed.score_sums),
       .z_sum = mutable_data_or_null(routed.z_sum),
       .parts = mutable_data_or_null(parts)},
      x);
  return routed;
}

Tensor route_tokens_backward_on_gpu(const Tensor& logits, const Tensor& experts, const RoutedGradients& gradients,
                                    const RouterForm& form, const RouterSums& sums) {
  if (!takes_kernel(logits, form)) return kRouterReference.backward(logits, experts, gradients, form, sums);
  const auto contiguous = [](const Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const Tensor x = logits.contiguous(), dweights = contiguous(gradients.weights);
  const Tensor dscore_sums = contiguous(gradients.score_sums), dz_sum = contiguous(gradients.z_sum);
  Tensor dlogits = at::empty(logits.sizes(), logits.options());
  gpu::on_stream_of<&gpu::route_tokens_backward, gpu::RouteTokensBackward>(
      {.dtype = to_dtype(x.scalar_type()),
       .tokens = x.size(0),
       .num_experts = x.size(1),
       .form = form,
       .sums = sums,
       .logits = x.const_data_ptr(),
       .experts = experts.const_data_ptr<int64_t>(),
       .dweights = data_or_null(dweights),
       .dscore_sums = data_or_null(dscore_sums),
       .dz_sum = data_or_null(dz_sum),
       .dlogits = dlogits.mutable_data_ptr()},
      x);
  return dlogits;
}

constexpr RouterTable kRouterGpu{.forward = route_tokens_on_gpu, .backward = route_tokens_backward_on_gpu};
#endif

void check_logits(const char* op, const Tensor& logits, const RouterForm& form, const RouterSums& sums) {
  check_rank(op, {"logits", logits}, 2);
  if (logits.scalar_type() != at::kDouble) check_dtype(op, {"logits", logits}, at::kFloat);
  const int64_t e = logits.size(1), groups = form.num_groups;
  if (form.num_chosen < 1 || form.num_chosen > e) {
    throw UserError(fmt::format("{}: {} experts are to be chosen of {}", op, form.num_chosen, e),
                    "choose at least one, and no more than there are");
  }
  if (groups > 0 && (e % groups != 0 || form.open_groups < 1 || form.open_groups > groups || form.group_scores < 1 ||
                     form.group_scores > e / groups || form.num_chosen > form.open_groups * (e / groups))) {
    throw UserError(fmt::format("{}: {} of {} experts, of {} of {} groups by their {} best, do not fit one another", op,
                                form.num_chosen, e, form.open_groups, groups, form.group_scores),
                    "the open groups must have as many experts as are chosen");
  }
  if (sums.num_sequences > 0 &&
      (sums.first < 0 || sums.first + logits.size(0) > sums.num_sequences * sums.sequence_length)) {
    throw UserError(fmt::format("{}: {} tokens from number {} on are not in {} sequences of {}", op, logits.size(0),
                                sums.first, sums.num_sequences, sums.sequence_length));
  }
}

void check_choice(const char* op, const Tensor& logits, const Tensor& experts, const RouterForm& form) {
  check_dense(op, {"experts", experts}, {logits.size(0), form.num_chosen}, at::kLong, {"logits", logits});
}

}  // namespace

constexpr Operator<RouterTable> kRouter{.name = "router",
                                        .reference = &kRouterReference,
                                        .cpu = &kRouterCpu,
                                        .meta = &kRouterMeta,
#ifdef MEGALITH_GPU_KERNELS
                                        .gpu = &kRouterGpu
#endif
};

RoutedTokens route_tokens(const Tensor& logits, const Tensor& bias, const Tensor& experts, const RouterForm& form,
                          const RouterSums& sums, Kernels kernels) {
  constexpr const char* kOp = "route_tokens";
  check_logits(kOp, logits, form, sums);
  if (bias.defined()) {
    check_dense(kOp, {"bias", bias}, {logits.size(1)}, logits.scalar_type(), {"logits", logits});
  }
  if (experts.defined()) check_choice(kOp, logits, experts, form);
  return kRouter.run(kOp, &RouterTable::forward, kernels, logits, bias, experts, form, sums);
}

Tensor route_tokens_backward(const Tensor& logits, const Tensor& experts, const RoutedGradients& gradients,
                             const RouterForm& form, const RouterSums& sums, Kernels kernels) {
  constexpr const char* kOp = "route_tokens_backward";
  check_logits(kOp, logits, form, sums);
  check_choice(kOp, logits, experts, form);
  const auto check = [&](const char* name, const Tensor& gradient, at::IntArrayRef shape) {
    if (!gradient.defined()) return;
    check_dtype(kOp, {name, gradient}, logits.scalar_type());
    check_shape(kOp, {name, gradient}, shape);
    check_devices(kOp, {{"logits", logits}, {name, gradient}});
  };
  check("dweights", gradients.weights, experts.sizes());
  check("dscore_sums", gradients.score_sums, {sums.balance_rows(), logits.size(1)});
  check("dz_sum", gradients.z_sum, {1});
  return kRouter.run(kOp, &RouterTable::backward, kernels, logits, experts, gradients, form, sums);
}

}  // namespace megalith::ops
