// One Function spans rotation and attention: the unrotated projection is not kept, and its gradient fills one buffer.
#include "nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "nn/option_rules.h"
#include "ops/arguments.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rotary/rotary.h"

namespace megalith {

namespace {

std::vector<LinearPart> qkv_parts(const std::string& name, const LayerOptions& options, const AttentionNames& names) {
  require_options(name, options, check_heads);
  const int64_t d = options.head_dim(), q = options.num_attention_heads * d, kv = options.num_kv_heads() * d;
  if (names.fused.empty()) {
    return {{name + "." + names.q, q}, {name + "." + names.k, kv}, {name + "." + names.v, kv}};
  }
  const std::string fused = name + "." + names.fused;
  return {{fused, q, 0, q + 2 * kv}, {fused, kv, q, q + 2 * kv}, {fused, kv, q + kv, q + 2 * kv}};
}

at::Tensor rotated(const at::Tensor& x, const RotaryAngles& angles, bool is_interleaved, Kernels kernels) {
  return angles.cos.defined() ? ops::rotary(x, angles.cos, angles.sin, is_interleaved, kernels) : x.contiguous();
}

// Views of the projection (t, (n + 2g) d) as (b, s, heads, d).
struct HeadViews {
  at::Tensor q, k, v;
};
HeadViews split_heads(const at::Tensor& qkv, int64_t b, int64_t s, int64_t n, int64_t g) {
  const at::Tensor heads = qkv.view({b, s, n + 2 * g, -1});
  return {heads.narrow(2, 0, n), heads.narrow(2, n, g), heads.narrow(2, n + g, g)};
}

struct L2NormFunction : torch::autograd::Function<L2NormFunction> {
  static at::Tensor ones(const at::Tensor& rows) {
    return at::ones({rows.size(1)}, rows.options().requires_grad(false));
  }

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& rows, double eps,
                            Kernels kernels) {
    const auto [y, inv_rms] = ops::rms_norm_forward(rows, ones(rows), eps, kernels);
    node->save_for_backward({rows, inv_rms});
    hold(node, kernels);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor dx = std::get<0>(
        ops::rms_norm_backward(gradients[0].contiguous(), saved[0], ones(saved[0]), saved[1], held<Kernels>(node)));
    return {dx, {}, {}};
  }
};

at::Tensor l2_normed(const at::Tensor& x, double eps, Kernels kernels) {
  const at::Tensor rows = x.reshape({-1, x.size(2)}).contiguous();
  if (is_recording({rows})) return L2NormFunction::apply(rows, eps, kernels).view(x.sizes());
  return std::get<0>(ops::rms_norm_forward(rows, at::ones({x.size(2)}, x.options()), eps, kernels)).view(x.sizes());
}

// Scales the first `count` channels by (t, 1).
at::Tensor with_scaled_queries(const at::Tensor& qkv, int64_t count, const at::Tensor& scale) {
  const at::Tensor q = (qkv.narrow(1, 0, count) * scale).to(qkv.scalar_type());
  return at::cat({q, qkv.narrow(1, count, qkv.size(1) - count)}, 1);
}

}  // namespace

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  using Core = AttentionCore::Tensors;
  struct Call {
    const SelfAttention* layer;
    AttentionCore::Call core;
    RotaryAngles angles;
    AttentionCore::KeptTensors kept = {};
  };

  // *kept_out stays empty if the result itself is kept. Empty sinks, bias: none.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& qkv, const at::Tensor& /*sinks*/,
                            const at::Tensor& /*bias*/, int64_t b, int64_t s, Call call, Kept* kept_out) {
    const SelfAttention& layer = *call.layer;
    expect_contribution(layer.sinks_);
    const HeadViews heads = split_heads(qkv, b, s, layer.num_heads_, layer.num_kv_heads_);
    const auto rotate = [&](const at::Tensor& x) {
      return rotated(x, call.angles, layer.is_rotary_interleaved_, layer.kernels_);
    };
    // A view of v would keep the whole projection alive.
    Core core{.q = rotate(heads.q), .k = rotate(heads.k), .v = heads.v.contiguous(), .out = {}, .lse = {}};
    const at::Tensor out = compute(core, call);
    call.kept = layer.core_.keep(core, call.core, layer.policy_.core_attention);
    if (layer.policy_.core_attention) *kept_out = call.kept.out.then(as_tokens);
    hold(node, std::move(call));
    return as_tokens(out);
  }

  static at::Tensor as_tokens(const at::Tensor& of_heads) {
    return of_heads.view({of_heads.size(0) * of_heads.size(1), -1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const SelfAttention& layer = *call.layer;
    const Core core = call.kept.take();
    const at::Tensor& out = core.out;
    const at::Tensor dout = gradients[0].contiguous().view(out.sizes());
    at::Tensor dsinks;
    const ops::AttentionGradients d = layer.core_.backward(dout, core, call.core, &dsinks);
    if (layer.sinks_ != nullptr && layer.sinks_->is_trainable()) layer.sinks_->add_grad(dsinks);
    const int64_t b = out.size(0), s = out.size(1), n = layer.num_heads_, g = layer.num_kv_heads_;
    const at::Tensor dqkv = at::empty({b * s, (n + 2 * g) * out.size(3)}, out.options());
    const HeadViews parts = split_heads(dqkv, b, s, n, g);
    const auto turn_back_into = [&](const at::Tensor& place, const at::Tensor& dy) {
      if (!call.angles.cos.defined()) {
        place.copy_(dy);
        return;
      }
      ops::rotary_backward_into(dy, call.angles.cos, call.angles.sin, layer.is_rotary_interleaved_, place,
                                layer.kernels_);
    };
    turn_back_into(parts.q, d.dq);
    turn_back_into(parts.k, d.dk);
    parts.v.copy_(d.dv);
    return {dqkv, {}, d.dbias, {}, {}, {}, {}};
  }

  static at::Tensor compute(Core& core, const Call& call) {
    call.layer->core_.exchange(core, call.core);
    call.layer->core_.compute(core, call.core);
    return core.out;
  }
};

SelfAttention::SelfAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                             const AttentionSite& site)
    : head_dim_(options.head_dim()),
      is_rotary_interleaved_(options.rotary_interleaved),
      num_heads_(heads_of_rank(options.num_attention_heads, context, "num_attention_heads")),
      num_kv_heads_(heads_of_rank(options.num_kv_heads(), context, "num_query_groups")),
      policy_(context.recompute),
      kernels_(context.kernels),
      core_(context, name, site.layer,
            1 / std::sqrt(options.query_pre_attn_scalar.value_or(static_cast<double>(head_dim_))),
            options.attention_dropout, num_heads_, num_kv_heads_),
      qkv_(context, name + ".qkv_proj", options.hidden_size, qkv_parts(name, options, site.names),
           {.role = LinearRole::kColumn,
            .has_bias = options.has_qkv_bias(),
            .is_transposed = site.is_transposed,
            .init_std = options.init_method_std,
            .weight_role = ParameterRole::kQkv,
            .kind = LinearKind::kQkv}),
      output_(context, name + "." + site.names.output, options.num_attention_heads * head_dim_, options.hidden_size,
              {.role = LinearRole::kRow,
               .has_bias = options.has_linear_bias(),
               .is_transposed = site.is_transposed,
               .init_std = site.output_init_std,
               .kind = LinearKind::kAttentionOutput}),
      softmax_type_(options.softmax_type) {
  if (options.qk_l2_norm) l2_epsilon_ = options.norm_epsilon;
  register_module(qkv_);
  if (options.qk_layernorm && options.qk_layernorm_scope == HeadNormScope::kProjection) {
    const auto make_norm = [&](const std::string& below, int64_t heads) {
      return std::make_unique<ProjectionNorm>(context, name + "." + below, heads * head_dim_, options);
    };
    all_q_norm_ = make_norm(site.names.q_norm, options.num_attention_heads);
    all_k_norm_ = make_norm(site.names.k_norm, options.num_kv_heads());
    register_module(*all_q_norm_);
    register_module(*all_k_norm_);
  } else if (options.qk_layernorm) {
    const auto make_norm = [&](const std::string& below, int64_t heads) {
      return std::make_unique<Norm>(context, name + "." + below, head_dim_, options, heads);
    };
    q_norm_ = make_norm(site.names.q_norm, num_heads_);
    k_norm_ = make_norm(site.names.k_norm, num_kv_heads_);
    register_module(*q_norm_);
    register_module(*k_norm_);
  }
  if (softmax_type_ == SoftmaxType::kLearnable) add_sinks(context, name + "." + site.names.sinks, options);
  register_module(output_);
}

// Sharded like the heads: gradients are partial only over tokens.
void SelfAttention::add_sinks(const LayerContext& context, const std::string& name, const LayerOptions& options) {
  Placement placement{.local_shape = {num_heads_}};
  placement.pieces.push_back({.name = name,
                              .shape = {options.num_attention_heads},
                              .canonical = {{num_heads_ * context.groups->tp->rank()}, {num_heads_}},
                              .local = {{0}, {num_heads_}}});
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  sinks_ = &register_parameter(name, std::move(placement),
                               {.dtype = context.dtype,
                                .device = context.device,
                                .init = Init::normal(options.init_method_std),
                                .decay_mult = 0,
                                .role = ParameterRole::kVector});
}

AttentionCore::Call SelfAttention::make_call(const ForwardContext& forward) const {
  AttentionCore::Call call = core_.make_call(forward);
  if (softmax_type_ == SoftmaxType::kVanilla) return call;
  const at::Tensor& weight = qkv_.weight().value();
  const auto wide = ops::wide_dtype(weight.scalar_type());
  call.sinks = sinks_ != nullptr ? sinks_->data().to(wide) : at::zeros({num_heads_}, weight.options().dtype(wide));
  return call;
}

at::Tensor SelfAttention::norm_heads(const at::Tensor& qkv, const RotaryAngles& angles) {
  // Rotation preserves lengths, so these norms may come first.
  if (l2_epsilon_ && angles.cos.defined()) {
    const int64_t normed = num_heads_ + num_kv_heads_;
    const at::Tensor heads = qkv.view({qkv.size(0), -1, head_dim_});
    const at::Tensor y = l2_normed(heads.narrow(1, 0, normed), *l2_epsilon_, kernels_);
    return at::cat({y, heads.narrow(1, normed, num_kv_heads_)}, 1).view(qkv.sizes());
  }
  const int64_t d = head_dim_;
  if (all_q_norm_) {
    const int64_t q = num_heads_ * d, kv = num_kv_heads_ * d;
    const std::vector<at::Tensor> parts = qkv.split_with_sizes({q, kv, kv}, 1);
    return at::cat({all_q_norm_->forward(parts[0].contiguous()), all_k_norm_->forward(parts[1].contiguous()), parts[2]},
                   1);
  }
  if (!q_norm_) return qkv;
  const std::vector<at::Tensor> parts =
      qkv.view({qkv.size(0), -1, d}).split_with_sizes({num_heads_, num_kv_heads_, num_kv_heads_}, 1);
  const auto normed = [d](Norm& norm, const at::Tensor& heads) {
    return norm.forward(heads.reshape({-1, d}).contiguous()).view(heads.sizes());  // a view for one head
  };
  return at::cat({normed(*q_norm_, parts[0]), normed(*k_norm_, parts[1]), parts[2]}, 1).view(qkv.sizes());
}

at::Tensor SelfAttention::forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) {
  const at::Tensor rows = forward.dropout_rows();
  const int64_t b = forward.b, s = forward.s;
  at::Tensor qkv = norm_heads(qkv_.forward(x, rows), angles);
  if (angles.query_scale.defined()) {
    qkv = with_scaled_queries(qkv, num_heads_ * head_dim_, angles.query_scale.expand({b, s}).reshape({-1, 1}));
  }
  MEGALITH_CHECK(qkv.size(0) == b * s, "{} tokens, but b {} and s {}", qkv.size(0), b, s);
  AttentionFunction::Call call{this, make_call(forward), angles};
  const at::Tensor none = at::empty({0}, qkv.options().requires_grad(false));
  const at::Tensor sinks = sinks_ != nullptr ? sinks_->value() : none;
  const at::Tensor bias = forward.mask.bias.defined() ? forward.mask.bias : none;
  if (is_recording({qkv, sinks, bias})) {
    MEGALITH_CHECK(forward.cache == nullptr, "a KV cache keeps no graph");
    Kept kept;
    // The node keeps the call, which must not keep the graph.
    call.core.with_dbias = bias.requires_grad();
    if (forward.mask.bias.defined()) call.core.mask.bias = bias.detach();
    const at::Tensor out = AttentionFunction::apply(qkv, sinks, bias, b, s, call, &kept);
    return output_.forward({out, kept}, rows);
  }
  const HeadViews heads = split_heads(qkv, b, s, num_heads_, num_kv_heads_);
  const at::Tensor q = rotated(heads.q, angles, is_rotary_interleaved_, kernels_);
  const at::Tensor k = rotated(heads.k, angles, is_rotary_interleaved_, kernels_);
  if (forward.cache != nullptr)
    return output_.forward(core_.attend_with_cache(q, k, heads.v, forward, call.core.sinks).view({b * s, -1}));
  AttentionCore::Tensors core{.q = q, .k = k, .v = heads.v, .out = {}, .lse = {}};
  return output_.forward(AttentionFunction::compute(core, call).view({b * s, -1}), rows);
}

double SelfAttention::own_forward_flops(const CostShape& shape) const {
  const int64_t pairs = shape.b * shape.s * shape.s * core_.cp_size();
  return 4 * static_cast<double>(pairs * num_heads_ * head_dim_);
}

}  // namespace megalith
