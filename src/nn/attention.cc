// One Function spans rotation and attention, so that the fused projection need not be kept beside its rotated parts and
// its gradient is assembled in one buffer.
#include "nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/rotary/rotary.h"

namespace megalith {

namespace {

std::vector<LinearPart> qkv_parts(const std::string& name, const AttentionOptions& options) {
  const AttentionNames& names = options.names;
  const int64_t q = options.num_heads * options.head_dim, kv = options.num_kv_heads * options.head_dim;
  if (names.fused.empty()) {
    return {{name + "." + names.q, q}, {name + "." + names.k, kv}, {name + "." + names.v, kv}};
  }
  const std::string fused = name + "." + names.fused;
  return {{fused, q, 0, q + 2 * kv}, {fused, kv, q, q + 2 * kv}, {fused, kv, q + kv, q + 2 * kv}};
}

at::Tensor rotated(const at::Tensor& x, const RotaryAngles& angles, bool is_interleaved, Kernels kernels) {
  return angles.cos.defined() ? ops::rotary(x, angles.cos, angles.sin, is_interleaved, kernels) : x.contiguous();
}

// Views of the fused projection (t, (n + 2g) d) as (b, s, heads, d).
struct HeadViews {
  at::Tensor q, k, v;
};
HeadViews split_heads(const at::Tensor& qkv, int64_t b, int64_t s, int64_t n, int64_t g) {
  const at::Tensor heads = qkv.view({b, s, n + 2 * g, -1});
  return {heads.narrow(2, 0, n), heads.narrow(2, n, g), heads.narrow(2, n + g, g)};
}

}  // namespace

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  using Core = AttentionCore::Tensors;
  struct Call {
    const SelfAttention* layer;
    AttentionCore::Call core;
    RotaryAngles angles;
    // Where the core is computed again in backward; otherwise the node saves the tensors. Shared with the output
    // projection: its backward comes first and needs the core's output for its weight, attention needs it and the
    // log-sum-exp right after. Between these two alone it has them.
    std::shared_ptr<Core> shared;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& qkv, int64_t b, int64_t s,
                            Call call) {
    const SelfAttention& layer = *call.layer;
    const HeadViews heads = split_heads(qkv, b, s, layer.num_heads_, layer.num_kv_heads_);
    const auto rotate = [&](const at::Tensor& x) {
      return rotated(x, call.angles, layer.options_.is_rotary_interleaved, layer.kernels_);
    };
    // v is a copy, or the view would keep the whole projection alive.
    Core core{.q = rotate(heads.q), .k = rotate(heads.k), .v = heads.v.contiguous(), .out = {}, .lse = {}};
    const at::Tensor out = compute(core, call);
    if (call.shared) {
      *call.shared = {.q = core.q, .k = core.k, .v = core.v, .out = {}, .lse = {}};
    } else {
      node->save_for_backward({core.q, core.k, core.v, core.out, core.lse});
    }
    hold(node, std::move(call));
    return out.view({b * s, -1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const SelfAttention& layer = *call.layer;
    const auto saved = node->get_saved_variables();
    // Taken from the node, which lives until the whole backward pass is done.
    const auto shared = std::exchange(call.shared, {});
    if (shared && !shared->out.defined()) layer.core_.compute(*shared, call.core);  // a frozen projection did not ask
    const Core core = shared ? std::exchange(*shared, {}) : Core{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const at::Tensor& out = core.out;
    const at::Tensor dout = gradients[0].contiguous().view(out.sizes());
    const ops::AttentionGradients d = layer.core_.backward(dout, core, call.core);
    const int64_t b = out.size(0), s = out.size(1), n = layer.num_heads_, g = layer.num_kv_heads_;
    const at::Tensor dqkv = at::empty({b * s, (n + 2 * g) * out.size(3)}, out.options());
    const HeadViews parts = split_heads(dqkv, b, s, n, g);
    const auto unrotated = [&](const at::Tensor& dy) {
      if (!call.angles.cos.defined()) return dy;
      return ops::rotary_backward(dy, call.angles.cos, call.angles.sin, layer.options_.is_rotary_interleaved,
                                  layer.kernels_);
    };
    parts.q.copy_(unrotated(d.dq));
    parts.k.copy_(unrotated(d.dk));
    parts.v.copy_(d.dv);
    return {dqkv, {}, {}, {}};
  }

  // From q, k and v of this rank's tokens, in whose places then stand those that backward needs.
  static at::Tensor compute(Core& core, const Call& call) {
    call.layer->core_.exchange(core, call.core);
    call.layer->core_.compute(core, call.core);
    return core.out;
  }
};

SelfAttention::SelfAttention(const LayerContext& context, const std::string& name, const AttentionOptions& options)
    : options_(options),
      num_heads_(heads_of_rank(options.num_heads, context, "num_attention_heads")),
      num_kv_heads_(heads_of_rank(options.num_kv_heads, context, "num_query_groups")),
      recomputes_core_(context.recompute.core_attention),
      kernels_(context.kernels),
      core_(context, name, options.layer, 1 / std::sqrt(static_cast<double>(options.head_dim)), options.dropout,
            num_heads_, num_kv_heads_),
      qkv_(context, name + ".qkv_proj", options.hidden, qkv_parts(name, options),
           {.role = LinearRole::kColumn,
            .has_bias = options.has_qkv_bias,
            .is_transposed = options.is_transposed,
            .init_std = options.init_std,
            .keeps_input = options.keeps_input,
            .weight_role = ParameterRole::kQkv}),
      output_(context, name + "." + options.names.output, options.num_heads * options.head_dim, options.hidden,
              {.role = LinearRole::kRow,
               .has_bias = options.has_output_bias,
               .is_transposed = options.is_transposed,
               .init_std = options.output_init_std,
               .keeps_input = !recomputes_core_}) {
  div_exact(options.num_heads, options.num_kv_heads);
  register_module(qkv_);
  if (options.head_norm) {
    const auto make_norm = [&](const std::string& below, int64_t heads) {
      NormOptions norm = *options.head_norm;
      norm.num_heads = heads;
      return std::make_unique<Norm>(context, name + "." + below, options.head_dim, norm);
    };
    q_norm_ = make_norm(options.names.q_norm, num_heads_);
    k_norm_ = make_norm(options.names.k_norm, num_kv_heads_);
    register_module(*q_norm_);
    register_module(*k_norm_);
  }
  register_module(output_);
}

// The fused projection (t, (n + 2g) d) with its query and key heads normed.
at::Tensor SelfAttention::norm_heads(const at::Tensor& qkv) {
  if (!q_norm_) return qkv;
  const int64_t d = options_.head_dim;
  const std::vector<at::Tensor> parts =
      qkv.view({qkv.size(0), -1, d}).split_with_sizes({num_heads_, num_kv_heads_, num_kv_heads_}, 1);
  const auto normed = [d](Norm& norm, const at::Tensor& heads) {
    return norm.forward(heads.reshape({-1, d}).contiguous()).view(heads.sizes());  // of one head, reshape is a view
  };
  return at::cat({normed(*q_norm_, parts[0]), normed(*k_norm_, parts[1]), parts[2]}, 1).view(qkv.sizes());
}

at::Tensor SelfAttention::forward(const at::Tensor& x, const ForwardContext& forward, const RotaryAngles& angles,
                                  const RestoreInput& restore) {
  const at::Tensor qkv = norm_heads(qkv_.forward(x, restore));
  const int64_t b = forward.b, s = forward.s;
  MEGALITH_CHECK(qkv.size(0) == b * s, "{} tokens, but b {} and s {}", qkv.size(0), b, s);
  AttentionFunction::Call call{this, core_.make_call(forward), angles, {}};
  if (is_recording({qkv})) {
    MEGALITH_CHECK(forward.cache == nullptr, "a KV cache keeps no graph");
    if (!recomputes_core_) return output_.forward(AttentionFunction::apply(qkv, b, s, std::move(call)));
    call.shared = std::make_shared<AttentionCore::Tensors>();
    const at::Tensor out = AttentionFunction::apply(qkv, b, s, call);
    return output_.forward(out, [this, call = std::move(call)] {
      core_.compute(*call.shared, call.core);
      return call.shared->out.view({call.shared->out.size(0) * call.shared->out.size(1), -1});
    });
  }
  const HeadViews heads = split_heads(qkv, b, s, num_heads_, num_kv_heads_);
  const at::Tensor q = rotated(heads.q, angles, options_.is_rotary_interleaved, kernels_);
  const at::Tensor k = rotated(heads.k, angles, options_.is_rotary_interleaved, kernels_);
  if (forward.cache != nullptr)
    return output_.forward(core_.attend_with_cache(q, k, heads.v, forward).view({b * s, -1}));
  AttentionCore::Tensors core{.q = q, .k = k, .v = heads.v, .out = {}, .lse = {}};
  return output_.forward(AttentionFunction::compute(core, call).view({b * s, -1}));
}

LayerCost SelfAttention::own_cost(const CostShape& shape) const {
  const int64_t tokens = shape.b * shape.s, d = options_.head_dim, statistic_bytes = recomputes_core_ ? 0 : 4;
  const int64_t keys = shape.s * core_.cp_size();
  // Of the products q k^T and p v. Kept are q, k, v and the log-sum-exp; the output is what the projection after it
  // keeps.
  return {.forward_flops = 4 * static_cast<double>(tokens * keys * num_heads_ * d),
          .kept_bytes =
              tokens * ((num_heads_ + 2 * num_kv_heads_) * d * shape.activation_bytes + num_heads_ * statistic_bytes)};
}

int64_t SelfAttention::backward_bytes(const CostShape& shape) const {
  const int64_t tokens = shape.b * shape.s, d = options_.head_dim;
  const int64_t q = tokens * num_heads_ * d, kv = 2 * tokens * num_kv_heads_ * d;
  // At the end the gradients of out, of q, k and v, these together, and of q before the rotation. Norms of heads take
  // less afterwards.
  const int64_t at_end = (3 * q + 2 * kv + q) * shape.activation_bytes;
  const int64_t stream = tokens * options_.hidden * shape.activation_bytes;  // its gradient passes attention by
  return stream + core_.backward_bytes(shape, d, d, at_end);
}

}  // namespace megalith
