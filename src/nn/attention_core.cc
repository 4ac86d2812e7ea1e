#include "nn/attention_core.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <tuple>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/attention_sinks.h"

namespace megalith {

int64_t heads_of_rank(int64_t heads, const LayerContext& context, std::string_view option) {
  const int tp = context.groups->tp->size();
  if (heads % tp != 0) {
    throw UserError(fmt::format("tensor_model_parallel_size {} does not divide {} {}", tp, option, heads),
                    fmt::format("set tensor_model_parallel_size to a divisor of {}", heads));
  }
  return heads / tp;
}

AttentionCore::AttentionCore(const LayerContext& context, const std::string& name, int64_t layer, double scale,
                             double dropout, int64_t num_heads, int64_t num_kv_heads)
    : layer_(layer),
      scale_(scale),
      dropout_(dropout),
      dropout_key_(make_philox_key(context.seed, "dropout." + name)),
      head_start_(num_heads * context.groups->tp->rank()),
      num_kv_heads_(num_kv_heads),
      kernels_(context.kernels, context.attention_libraries),
      context_(*context.groups, context_parallel_kind(context.context_parallel_kinds, layer), name, scale, num_heads,
               num_kv_heads, kernels_) {}

AttentionCore::Call AttentionCore::make_call(const ForwardContext& forward) const {
  Call call{forward.row_length > 0, forward.mask, {}};
  MEGALITH_CHECK(!call.is_shared || (forward.cache == nullptr && forward.row_length == forward.s * cp_size()),
                 "a sequence of {} is no {} parts of {}", forward.row_length, cp_size(), forward.s);
  if (dropout_ > 0 && forward.is_training) {
    MEGALITH_CHECK(forward.row_ids.defined(), "dropout needs the global numbers of the tokens");
    call.dropout = {dropout_, dropout_key_, forward.row_ids, head_start_};
  }
  return call;
}

void AttentionCore::exchange(Tensors& core, const Call& call) const {
  if (!call.is_shared) return;
  auto [q, k, v] = context_.exchange_heads(core.q, core.k, core.v);
  core = {.q = q, .k = k, .v = v, .out = {}, .lse = {}};
}

void AttentionCore::compute(Tensors& core, const Call& call) const {
  if (call.is_shared) {
    auto [out, lse] = context_.forward({core.q, core.k, core.v}, {call.mask, call.dropout, call.sinks});
    core.out = out;
    core.lse = lse;
    return;
  }
  std::tie(core.out, core.lse) =
      ops::attention_forward(core.q, core.k, core.v, scale_, call.mask, call.dropout, kernels_);
  if (call.sinks.defined()) std::tie(core.out, core.lse) = with_sinks(core.out, core.lse, call.sinks);
}

AttentionCore::KeptTensors AttentionCore::keep(const Tensors& core, const Call& call, bool is_recomputed) const {
  return keep({Kept(core.q), Kept(core.k), Kept(core.v)}, core, call, is_recomputed);
}

AttentionCore::KeptTensors AttentionCore::keep(std::vector<Kept> qkv, const Tensors& core, const Call& call,
                                               bool is_recomputed) const {
  std::vector<Kept> results = {Kept(core.out), Kept(core.lse)};
  if (is_recomputed) {
    results = Kept::computed(2, [this, qkv, call] {
      Tensors again{.q = qkv[0].get(), .k = qkv[1].get(), .v = qkv[2].get(), .out = {}, .lse = {}};
      compute(again, call);
      return std::vector<at::Tensor>{again.out, again.lse};
    });
  }
  return {qkv[0], qkv[1], qkv[2], results[0], results[1]};
}

ops::AttentionGradients AttentionCore::backward(const at::Tensor& dout, const Tensors& core, const Call& call,
                                                at::Tensor* dsinks) const {
  if (call.is_shared) {
    return context_.backward(dout, {core.q, core.k, core.v}, {core.out, core.lse},
                             {call.mask, call.dropout, call.sinks}, dsinks);
  }
  if (call.sinks.defined() && dsinks != nullptr) *dsinks = sink_gradient(dout, core.out, core.lse, call.sinks);
  return ops::attention_backward(dout, core.q, core.k, core.v, core.out, core.lse, scale_, call.mask, call.dropout,
                                 call.with_dbias, kernels_);
}

at::Tensor AttentionCore::attend_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const ForwardContext& forward, const at::Tensor& sinks) const {
  KvCache& cache = *forward.cache;
  const int64_t end = cache.length + forward.s;
  MEGALITH_CHECK(end <= cache.capacity, "{} positions in a KV cache of {}", end, cache.capacity);
  const auto number = static_cast<size_t>(layer_);
  if (cache.slots.size() <= number) cache.slots.resize(number + 1);
  KvCache::Slot& slot = cache.slots[number];
  const auto extend = [&](at::Tensor& stored, const at::Tensor& x) {
    if (!stored.defined()) stored = at::empty({forward.b, cache.capacity, num_kv_heads_, x.size(3)}, x.options());
    stored.narrow(1, cache.length, forward.s).copy_(x);
    return stored.narrow(1, 0, end);
  };
  const at::Tensor keys = extend(slot.k, k), values = extend(slot.v, v);
  const auto [out, lse] = ops::attention_forward(q, keys, values, scale_, forward.mask, {}, kernels_);
  return sinks.defined() ? with_sinks(out, lse, sinks).first : out;
}

}  // namespace megalith
