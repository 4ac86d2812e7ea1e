#include "nn/cross_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "nn/function.h"
#include "nn/option_rules.h"

namespace megalith {

struct CrossAttentionFunction : torch::autograd::Function<CrossAttentionFunction> {
  using Core = AttentionCore::Tensors;
  struct Call {
    const CrossAttention* layer;
    AttentionCore::Call core;
    int64_t b = 0;
    AttentionCore::KeptTensors kept = {};
  };

  // q (t, n d), kv (m, 2 g d) -> (t, n d)
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& q, const at::Tensor& kv,
                            Call call, Kept* kept_out) {
    const CrossAttention& layer = *call.layer;
    Core core = heads_of(layer, q, kv, call.b);
    layer.core_.compute(core, call.core);
    const at::Tensor out = core.out;
    call.kept = layer.core_.keep(core, call.core, layer.policy_.core_attention);
    if (layer.policy_.core_attention) *kept_out = call.kept.out.then(as_tokens_of_heads);
    hold(node, std::move(call));
    return as_tokens_of_heads(out);
  }

  // Copies: views would keep the fused projection and each other alive.
  static Core heads_of(const CrossAttention& layer, const at::Tensor& q, const at::Tensor& kv, int64_t b) {
    const int64_t g = layer.num_kv_heads_, d = layer.head_dim_;
    const at::Tensor keys_values = kv.view({b, -1, 2 * g, d});
    return {.q = q.view({b, -1, layer.num_heads_, d}),
            .k = keys_values.narrow(2, 0, g).contiguous(),
            .v = keys_values.narrow(2, g, g).contiguous(),
            .out = {},
            .lse = {}};
  }

  static at::Tensor as_tokens_of_heads(const at::Tensor& of_heads) {
    return of_heads.view({of_heads.size(0) * of_heads.size(1), -1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const Core core = call.kept.take();
    const at::Tensor dout = gradients[0].contiguous().view(core.out.sizes());
    const ops::AttentionGradients d = call.layer->core_.backward(dout, core, call.core);
    const int64_t m = d.dk.size(0) * d.dk.size(1);
    return {as_tokens_of_heads(d.dq), at::cat({d.dk, d.dv}, 2).view({m, -1}), {}, {}};
  }
};

CrossAttention::CrossAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                               const AttentionSite& site)
    : num_heads_(heads_of_rank(options.num_attention_heads, context, "num_attention_heads")),
      num_kv_heads_(heads_of_rank(options.num_kv_heads(), context, "num_query_groups")),
      head_dim_(options.head_dim()),
      layer_(site.layer),
      policy_(context.recompute),
      core_(context, name, site.layer,
            1 / std::sqrt(options.query_pre_attn_scalar.value_or(static_cast<double>(head_dim_))),
            options.attention_dropout, num_heads_, num_kv_heads_),
      q_(context, name + "." + site.names.q, options.hidden_size, options.num_attention_heads * head_dim_,
         {.role = LinearRole::kColumn,
          .has_bias = options.has_qkv_bias(),
          .is_transposed = site.is_transposed,
          .init_std = options.init_method_std}),
      kv_(context, name + ".kv_proj", options.hidden_size,
          {{name + "." + site.names.k, options.num_kv_heads() * head_dim_},
           {name + "." + site.names.v, options.num_kv_heads() * head_dim_}},
          {.role = LinearRole::kColumn,
           .has_bias = options.has_qkv_bias(),
           .is_transposed = site.is_transposed,
           .init_std = options.init_method_std}),
      output_(context, name + "." + site.names.output, options.num_attention_heads * head_dim_, options.hidden_size,
              {.role = LinearRole::kRow,
               .has_bias = options.has_linear_bias(),
               .is_transposed = site.is_transposed,
               .init_std = site.output_init_std}) {
  require_options(name, options, check_heads);
  register_module(q_);
  register_module(kv_);
  register_module(output_);
}

at::Tensor CrossAttention::forward(const Activation& x, const EncoderMemory& memory, const ForwardContext& forward) {
  const at::Tensor q = q_.forward(x);
  MEGALITH_CHECK(q.size(0) == forward.b * forward.s, "{} tokens, but b {} and s {}", q.size(0), forward.b, forward.s);
  AttentionCore::Call core = core_.make_call(forward);
  core.mask = {};
  core.mask.is_causal = false;
  core.mask.key_lengths = memory.lengths;
  const CrossAttentionFunction::Call call{this, std::move(core), forward.b};
  const at::Tensor kv = keys_and_values(memory, forward);
  MEGALITH_CHECK(kv.size(0) == forward.b * memory.s, "a memory of {} tokens, but b {} and s {}", kv.size(0), forward.b,
                 memory.s);
  if (is_recording({q, kv})) {
    Kept kept;
    const at::Tensor out = CrossAttentionFunction::apply(q, kv, call, &kept);
    return output_.forward({out, kept});
  }
  AttentionCore::Tensors heads = CrossAttentionFunction::heads_of(*this, q, kv, forward.b);
  core_.compute(heads, call.core);
  return output_.forward(CrossAttentionFunction::as_tokens_of_heads(heads.out));
}

at::Tensor CrossAttention::keys_and_values(const EncoderMemory& memory, const ForwardContext& forward) {
  if (forward.cache == nullptr) return kv_.forward(memory.hidden);
  at::Tensor& kept = forward.cache->memory_keys[layer_];
  if (!kept.defined()) kept = kv_.forward(memory.hidden);
  return kept;
}

double CrossAttention::own_forward_flops(const CostShape& shape) const {
  return 4 * static_cast<double>(shape.b * shape.s * shape.encoder_s * num_heads_ * head_dim_);
}

CostShape CrossAttention::shape_of(const Module& child, const CostShape& shape) const {
  return &child == &kv_ ? CostShape{.b = shape.b, .s = shape.encoder_s} : shape;
}

}  // namespace megalith
