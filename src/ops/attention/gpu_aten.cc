// Plans' calls by vendors' libraries through ATen. Several calls' results for the same queries are merged by
// log-sum-exp, gradients added, in fp32. The host reads nothing.
//
//   library  q, k, v, out        log-sum-exp (natural, fp32)        KV heads
//   flash    (b, s, heads, d)    (b, n, sq); (n, tokens) of a call  fewer than query heads
//            (tokens, heads, d)  with lengths                       as they are
//   cuDNN    (b, heads, s, d)    (b, n, sq, 1)                      likewise
//
// Flash attention needs values as wide as keys: narrower ones are zero-padded. Source: LibTorch 2.11's declarations
// (tests/ops/vendor_schemas_test.cc).
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "device/transfer.h"
#include "ops/arguments.h"
#include "ops/attention/attention.h"
#include "ops/attention/plan.h"
#include "ops/merge_attention/merge_attention.h"

namespace megalith::ops {
namespace {

using at::Tensor;

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

// With its sequences' lengths on the device: (sequences + 1) int32, or undefined.
struct PlacedCall {
  VendorCall call;
  Tensor query_begins, key_begins;
};

struct PlacedPlan {
  std::vector<PlacedCall> calls;
  bool serves = false;
};

// Within a microbatch, whose layers share documents and lengths.
struct PlanKey {
  bool is_causal;
  int64_t window;
  std::vector<PositionRun> queries, keys;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  bool has_dropout;
  AttentionLibraries libraries;
  at::Device device;
  bool operator==(const PlanKey&) const = default;
};

}  // namespace

// Thread-safe: backward has its own thread.
class AttentionPlans {
 public:
  template <typename Make>
  std::shared_ptr<const PlacedPlan> find(PlanKey key, const Make& make) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, plan] : plans_) {
      if (known == key) return plan;
    }
    plans_.emplace_back(std::move(key), make());
    return plans_.back().second;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<PlanKey, std::shared_ptr<const PlacedPlan>>> plans_;
};

std::shared_ptr<AttentionPlans> make_attention_plans() { return std::make_shared<AttentionPlans>(); }

namespace {

Tensor placed(const std::vector<int32_t>& begins, at::Device device) {
  return begins.empty() ? Tensor() : sent_to(at::tensor(begins, at::kInt), device);
}

std::shared_ptr<const PlacedPlan> plan_of(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                                          const AttentionDropout& dropout, const AttentionLibraries& libraries) {
  const AttentionShape shape{q.size(0), q.size(1),       k.size(1),           q.size(2),     k.size(2),       q.size(3),
                             v.size(3), q.scalar_type(), mask.bias.defined(), dropout.p > 0, mask.softcap > 0};
  const std::optional<MaskForm> form = MaskForm::of(mask, shape.sq, shape.sk);
  const auto make = [&] {
    const AttentionPlan plan = plan_attention(form, shape, libraries);
    auto found = std::make_shared<PlacedPlan>();
    found->serves = plan.reason.empty();
    for (const VendorCall& call : plan.calls) {
      found->calls.push_back({call, placed(call.query_begins, q.device()), placed(call.key_begins, q.device())});
    }
    return found;
  };
  if (!form || !form->runs.plans || shape.has_bias || shape.has_softcap) return make();
  PlanKey key{form->is_causal,
              form->window,
              form->runs.queries,
              form->runs.keys,
              {shape.b, shape.sq, shape.sk, shape.n, shape.g, shape.d, shape.dv},
              shape.dtype,
              shape.has_dropout,
              libraries,
              q.device()};
  return form->runs.plans->find(std::move(key), make);
}

// x (b, s, heads, d) -> (rows, count, heads, d), or with lengths (count, heads, d).
Tensor part_of(const Tensor& x, const VendorCall& call, const IndexRange& range) {
  if (call.has_lengths()) return x.flatten(0, 1).narrow(0, range.first, range.count);
  return x.narrow(0, call.rows.first, call.rows.count).narrow(1, range.first, range.count);
}

// x (n, b, sq) -> (n, rows, count), or (n, count).
Tensor part_of_lse(const Tensor& x, const VendorCall& call) {
  if (call.has_lengths()) return x.flatten(1, 2).narrow(1, call.queries.first, call.queries.count);
  return x.narrow(1, call.rows.first, call.rows.count).narrow(2, call.queries.first, call.queries.count);
}

// Zero-pads the channels.
Tensor widened(const Tensor& x, int64_t width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

std::optional<int64_t> bound_of(const VendorCall& call, int64_t bound) {
  return call.has_window() && bound >= 0 ? std::optional<int64_t>(bound) : std::nullopt;
}

std::optional<Tensor> if_defined(const Tensor& x) { return x.defined() ? std::optional<Tensor>(x) : std::nullopt; }

Tensor unread_state(const Tensor& q, bool is_pair) {
  if (at::Context::hasROCM()) return at::zeros({}, q.options().dtype(at::kLong));
  return at::empty(is_pair ? at::IntArrayRef{2} : at::IntArrayRef{}, q.options().dtype(at::kUInt64));
}

struct Operands {
  Tensor q, k, v;
  double scale;
};

// out like part_of(), lse like part_of_lse().
std::pair<Tensor, Tensor> flash_forward(const PlacedCall& placed, const Operands& x) {
  const VendorCall& call = placed.call;
  const int64_t width = std::max(x.q.size(-1), x.v.size(-1));
  const auto results = at::_flash_attention_forward(
      widened(x.q, width), widened(x.k, width), widened(x.v, width), if_defined(placed.query_begins),
      if_defined(placed.key_begins), call.max_queries, call.max_keys, /*dropout_p=*/0.0, call.is_causal(),
      /*return_debug_mask=*/false, x.scale, bound_of(call, call.left), bound_of(call, call.right));
  const Tensor out = std::get<0>(results).narrow(-1, 0, x.v.size(-1)), lse = std::get<1>(results);
  return {out, call.has_lengths() ? lse : lse.transpose(0, 1)};
}

AttentionGradients flash_backward(const PlacedCall& placed, const Operands& x, const Tensor& dout, const Tensor& out,
                                  const Tensor& lse) {
  const VendorCall& call = placed.call;
  const int64_t d = x.q.size(-1), dv = x.v.size(-1), width = std::max(d, dv);
  const Tensor dense_lse = (call.has_lengths() ? lse : lse.transpose(0, 1)).contiguous();
  const auto [dq, dk, dvalue] = at::_flash_attention_backward(
      widened(dout, width), widened(x.q, width), widened(x.k, width), widened(x.v, width), widened(out, width),
      dense_lse, placed.query_begins, placed.key_begins, call.max_queries, call.max_keys, /*dropout_p=*/0.0,
      call.is_causal(), unread_state(x.q, true), unread_state(x.q, false), x.scale, bound_of(call, call.left),
      bound_of(call, call.right));
  return {dq.narrow(-1, 0, d), dk.narrow(-1, 0, d), dvalue.narrow(-1, 0, dv), {}};
}

std::pair<Tensor, Tensor> cudnn_forward(const PlacedCall& placed, const Operands& x) {
  const VendorCall& call = placed.call;
  const auto results = at::_cudnn_attention_forward(
      x.q.transpose(1, 2), x.k.transpose(1, 2), x.v.transpose(1, 2), /*attn_bias=*/{}, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, call.max_queries, call.max_keys, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
      call.is_causal(), /*return_debug_mask=*/false, x.scale);
  const Tensor lse = std::get<1>(results).view({x.q.size(0), x.q.size(2), x.q.size(1)});
  return {std::get<0>(results).transpose(1, 2), lse.transpose(0, 1)};
}

AttentionGradients cudnn_backward(const PlacedCall& placed, const Operands& x, const Tensor& dout, const Tensor& out,
                                  const Tensor& lse) {
  const VendorCall& call = placed.call;
  const Tensor state = at::empty({}, x.q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_cudnn_attention_backward(
      dout.transpose(1, 2), x.q.transpose(1, 2), x.k.transpose(1, 2), x.v.transpose(1, 2), out.transpose(1, 2),
      lse.transpose(0, 1).contiguous().unsqueeze(-1), state, state, /*attn_bias=*/{}, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, call.max_queries, call.max_keys, /*dropout_p=*/0.0, call.is_causal(), x.scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), {}};
}

std::pair<Tensor, Tensor> forward_of(const PlacedCall& placed, const Operands& x) {
  return placed.call.library == AttentionLibrary::kCudnn ? cudnn_forward(placed, x) : flash_forward(placed, x);
}

AttentionGradients backward_of(const PlacedCall& placed, const Operands& x, const Tensor& dout, const Tensor& out,
                               const Tensor& lse) {
  return placed.call.library == AttentionLibrary::kCudnn ? cudnn_backward(placed, x, dout, out, lse)
                                                         : flash_backward(placed, x, dout, out, lse);
}

Operands operands_of(const VendorCall& call, const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  return {part_of(q, call, call.queries), part_of(k, call, call.keys), part_of(v, call, call.keys), scale};
}

// One call covers all queries and keys.
bool is_whole(const PlacedPlan& plan, const Tensor& q, const Tensor& k) {
  if (plan.calls.size() != 1) return false;
  const VendorCall& call = plan.calls[0].call;
  const int64_t rows = call.has_lengths() ? q.size(0) : 1;
  return (call.has_lengths() || call.rows.count == q.size(0)) && call.queries.count == rows * q.size(1) &&
         call.keys.count == rows * k.size(1);
}

std::tuple<Tensor, Tensor> attention_by_libraries(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                                  const AttentionMask& mask, const AttentionDropout& dropout,
                                                  const AttentionLibraries& libraries) {
  const auto plan = plan_of(q, k, v, mask, dropout, libraries);
  if (!plan->serves) return kAttentionReference.forward(q, k, v, scale, mask, dropout, libraries);
  const int64_t b = q.size(0), sq = q.size(1), n = q.size(2), dv = v.size(3);
  if (is_whole(*plan, q, k)) {
    const auto [out, lse] = forward_of(plan->calls[0], operands_of(plan->calls[0].call, q, k, v, scale));
    return {out.reshape({b, sq, n, dv}).contiguous(), lse.reshape({n, b, sq}).transpose(0, 1).contiguous()};
  }
  const bool merges = std::ranges::any_of(plan->calls, [](const PlacedCall& one) { return one.call.merges; });
  const Tensor out = at::zeros({b, sq, n, dv}, merges ? wide_options(q) : q.options());
  const Tensor lse = at::full({n, b, sq}, kNoKeys, wide_options(q));
  for (const PlacedCall& placed : plan->calls) {
    const VendorCall& call = placed.call;
    const auto [part_out, part_lse] = forward_of(placed, operands_of(call, q, k, v, scale));
    const Tensor to_out = part_of(out, call, call.queries), to_lse = part_of_lse(lse, call);
    if (call.merges) {
      merge_attention_(to_out, to_lse.transpose(0, 1), part_out, part_lse.transpose(0, 1));
    } else {
      to_out.copy_(part_out);
      to_lse.copy_(part_lse);
    }
  }
  return {out.to(q.scalar_type()), lse.transpose(0, 1).contiguous()};
}

AttentionGradients gradients_by_libraries(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& out, const Tensor& lse, double scale, const AttentionMask& mask,
                                          const AttentionDropout& dropout, bool with_dbias,
                                          const AttentionLibraries& libraries) {
  const auto plan = plan_of(q, k, v, mask, dropout, libraries);
  if (!plan->serves) {
    return kAttentionReference.backward(dout, q, k, v, out, lse, scale, mask, dropout, with_dbias, libraries);
  }
  const Tensor heads_first_lse = lse.transpose(0, 1).contiguous();
  const auto of_call = [&](const PlacedCall& placed) {
    const VendorCall& call = placed.call;
    return backward_of(placed, operands_of(call, q, k, v, scale), part_of(dout, call, call.queries),
                       part_of(out, call, call.queries), part_of_lse(heads_first_lse, call));
  };
  if (is_whole(*plan, q, k)) {
    const AttentionGradients d = of_call(plan->calls[0]);
    const auto dense = [](const Tensor& x, const Tensor& like) { return x.reshape(like.sizes()).contiguous(); };
    return {dense(d.dq, q), dense(d.dk, k), dense(d.dv, v), {}};
  }
  const auto zeros_like = [](const Tensor& x) { return at::zeros(x.sizes(), wide_options(x)); };
  const Tensor dq = zeros_like(q), dk = zeros_like(k), dv = zeros_like(v);
  for (const PlacedCall& placed : plan->calls) {
    const AttentionGradients d = of_call(placed);
    part_of(dq, placed.call, placed.call.queries).add_(d.dq);
    part_of(dk, placed.call, placed.call.keys).add_(d.dk);
    part_of(dv, placed.call, placed.call.keys).add_(d.dv);
  }
  const auto narrowed = [&](const Tensor& x) { return x.to(q.scalar_type()); };
  return {narrowed(dq), narrowed(dk), narrowed(dv), {}};
}

}  // namespace

constexpr AttentionTable kAttentionGpuAten{.forward = attention_by_libraries, .backward = gradients_by_libraries};

}  // namespace megalith::ops
