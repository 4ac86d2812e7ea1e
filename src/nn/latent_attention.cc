// One Function spans rotation, assembly and attention, as in attention.cc.
#include "nn/latent_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "nn/option_rules.h"
#include "ops/rotary/rotary.h"

namespace megalith {

namespace {

// Hugging Face's classes ignore rms_norm_eps here.
constexpr NormOptions kLatentNorm{.normalization = Normalization::kRmsNorm, .norm_epsilon = 1e-6};

// Its gradient sums over tp.
struct SharedKeyFunction : torch::autograd::Function<SharedKeyFunction> {
  struct Call {
    Group* tp;
    bool gathers;  // if ranks have different tokens
    std::string label;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& key, Call call) {
    at::Tensor shared = compute(key, call);
    hold(node, std::move(call));
    return shared;
  }

  static at::Tensor compute(const at::Tensor& key, const Call& call) {
    return call.gathers ? call.tp->gathered(key.contiguous(), call.label) : key;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const Call& call = held<Call>(node);
    if (call.gathers) return {call.tp->reduce_scattered(gradients[0].contiguous(), ReduceOp::kSum, call.label), {}};
    at::Tensor sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    call.tp->all_reduce(sum, ReduceOp::kSum, call.label).wait();
    return {sum, {}};
  }
};

}  // namespace

struct LatentAttention::Call {
  int64_t b, s;
  AttentionCore::Call core;
  RotaryAngles angles;
};

struct LatentCoreFunction : torch::autograd::Function<LatentCoreFunction> {
  using Call = LatentAttention::Call;
  using Core = AttentionCore::Tensors;
  struct Saved {
    const LatentAttention* layer;
    Call call;
    AttentionCore::KeptTensors kept;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& q, const at::Tensor& kv,
                            const at::Tensor& key, const LatentAttention* layer, const Call& call,
                            const std::function<LatentAttention::Projections()>& again, Kept* kept_out) {
    Core core = heads_of(*layer, {q, kv, key}, call);
    layer->core_.compute(core, call.core);
    std::vector<Kept> qkv = {Kept(core.q), Kept(core.k), Kept(core.v)};
    if (again) {
      qkv = Kept::computed(3, [layer, call, again] {
        const Core heads = heads_of(*layer, again(), call);
        return std::vector<at::Tensor>{heads.q, heads.k, heads.v};
      });
    }
    const bool recomputes_core = layer->policy_.core_attention;
    Saved saved{layer, call, layer->core_.keep(std::move(qkv), core, call.core, recomputes_core)};
    if (recomputes_core) *kept_out = saved.kept.out.then(as_tokens);
    hold(node, std::move(saved));
    return as_tokens(core.out);
  }

  static at::Tensor as_tokens(const at::Tensor& of_heads) {
    return of_heads.view({of_heads.size(0) * of_heads.size(1), -1});
  }

  static Core heads_of(const LatentAttention& layer, const LatentAttention::Projections& x, const Call& call) {
    Core core = assemble(layer, x, call);
    layer.core_.exchange(core, call.core);
    return core;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    auto& [layer_address, call, kept] = held<Saved>(node);
    const LatentAttention& layer = *layer_address;
    const Core core = kept.take();
    const at::Tensor dout = gradients[0].contiguous().view(core.out.sizes());
    const ops::AttentionGradients d = layer.core_.backward(dout, core, call.core);
    const int64_t tokens = call.b * call.s, nope = layer.nope_dim_, rope = layer.rope_dim_;
    const auto unrotated = [&, angles = &call.angles](const at::Tensor& dy) {
      if (!angles->cos.defined()) return dy;
      return ops::rotary_backward(dy, angles->cos, angles->sin, layer.is_rotary_interleaved_, layer.kernels_);
    };
    const at::Tensor dq_rope = d.dq.narrow(3, nope, rope);
    if (call.angles.cos.defined()) dq_rope.copy_(unrotated(dq_rope));  // in attention's own result
    const at::Tensor dkey = unrotated(d.dk.narrow(3, nope, rope).sum(2, /*keepdim=*/true));
    const at::Tensor dkv = at::cat({d.dk.narrow(3, 0, nope), d.dv}, 3);
    return {d.dq.reshape({tokens, -1}), dkv.view({tokens, -1}), dkey.reshape({tokens, rope}), {}, {}, {}, {}};
  }

  // Copies: views would keep whole projections alive.
  static Core assemble(const LatentAttention& layer, const LatentAttention::Projections& x, const Call& call) {
    const int64_t b = call.b, s = call.s, n = layer.num_heads_, nope = layer.nope_dim_, rope = layer.rope_dim_;
    const auto rotated = [&](const at::Tensor& part) {
      if (!call.angles.cos.defined()) return part;
      return ops::rotary(part, call.angles.cos, call.angles.sin, layer.is_rotary_interleaved_, layer.kernels_);
    };
    const at::Tensor q = x.q.view({b, s, n, nope + rope}), kv = x.kv.view({b, s, n, nope + layer.v_dim_});
    const at::Tensor key_rope = rotated(x.key.view({b, s, 1, rope})).expand({b, s, n, rope});
    return {.q = at::cat({q.narrow(3, 0, nope), rotated(q.narrow(3, nope, rope))}, 3),
            .k = at::cat({kv.narrow(3, 0, nope), key_rope}, 3),
            .v = kv.narrow(3, nope, layer.v_dim_).contiguous(),
            .out = {},
            .lse = {}};
  }
};

LatentAttention::LatentAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                                 const LatentAttentionSite& site)
    : kv_rank_(options.kv_lora_rank),
      nope_dim_(options.qk_head_dim),
      rope_dim_(options.qk_pos_emb_head_dim),
      v_dim_(options.v_head_dim),
      is_rotary_interleaved_(site.is_rotary_interleaved),
      name_(name),
      tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      num_heads_(heads_of_rank(options.num_attention_heads, context, "num_attention_heads")),
      policy_(context.recompute),
      kernels_(context.kernels),
      core_(context, name, site.layer, options.softmax_factor() / std::sqrt(static_cast<double>(nope_dim_ + rope_dim_)),
            options.attention_dropout, num_heads_, num_heads_),
      kv_down_(context, name + ".kv_a_proj_with_mqa", options.hidden_size, kv_rank_ + rope_dim_,
               {.init_std = options.init_method_std}),
      kv_up_(context, name + ".kv_b_proj", kv_rank_, options.num_attention_heads * (nope_dim_ + v_dim_),
             {.role = LinearRole::kColumn, .init_std = options.init_method_std}),
      output_(context, name + ".o_proj", options.num_attention_heads * v_dim_, options.hidden_size,
              {.role = LinearRole::kRow, .init_std = site.output_init_std, .kind = LinearKind::kAttentionOutput}) {
  require_options(name, options, check_latent);
  const int64_t q_rows = options.num_attention_heads * (nope_dim_ + rope_dim_);
  const LinearOptions column{.role = LinearRole::kColumn, .init_std = options.init_method_std};
  if (!options.q_lora_rank) {
    q_ = std::make_unique<Linear>(context, name + ".q_proj", options.hidden_size, q_rows, column);
    register_module(*q_);
  } else {
    const int64_t q_rank = *options.q_lora_rank;
    q_down_ = std::make_unique<Linear>(context, name + ".q_a_proj", options.hidden_size, q_rank,
                                       LinearOptions{.init_std = options.init_method_std});
    q_up_ = std::make_unique<Linear>(context, name + ".q_b_proj", q_rank, q_rows, column);
    register_module(*q_down_);
    if (options.qk_layernorm) {
      q_norm_ = std::make_unique<Norm>(context, name + ".q_a_layernorm", q_rank, kLatentNorm);
      register_module(*q_norm_);
    }
    register_module(*q_up_);
  }
  register_module(kv_down_);
  if (options.qk_layernorm) {
    kv_norm_ = std::make_unique<Norm>(context, name + ".kv_a_layernorm", kv_rank_, kLatentNorm);
    register_module(*kv_norm_);
  }
  register_module(kv_up_);
  register_module(output_);
}

at::Tensor LatentAttention::forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) {
  const at::Tensor rows = forward.dropout_rows();
  const at::Tensor q = (q_ ? *q_ : *q_down_).forward(x, rows), latent = kv_down_.forward(x, rows);

  const Call call{forward.b, forward.s, core_.make_call(forward), angles};
  MEGALITH_CHECK(latent.size(0) * (is_sequence_parallel_ ? tp_->size() : 1) == call.b * call.s,
                 "{} tokens, but b {} and s {}", latent.size(0), call.b, call.s);
  const Projections projections = project_up(q, latent, rows);
  if (forward.cache != nullptr) {
    MEGALITH_CHECK(!is_recording({projections.q, projections.kv, projections.key}), "a KV cache keeps no graph");
    return output_.forward(attend_with_cache(projections, forward, call));
  }
  return output_.forward(attend(projections, call), rows);
}

// From all that is kept with SelectiveRecompute::latent_up.
LatentAttention::Projections LatentAttention::project_up(const at::Tensor& q, const at::Tensor& latent,
                                                         const at::Tensor& rows) {
  const std::vector<at::Tensor> parts = latent.split_with_sizes({kv_rank_, rope_dim_}, 1);
  Activation queries = q, values = parts[0].contiguous();
  const Kept kept_latent = policy_.latent_up ? Kept(latent) : Kept();
  if (policy_.latent_up) {
    queries.kept = Kept(q);
    values.kept =
        kept_latent.then([rank = kv_rank_](const at::Tensor& x) { return x.narrow(1, 0, rank).contiguous(); });
  }
  if (kv_norm_) values = normed(*kv_norm_, values);
  Projections up{.q = q, .kv = kv_up_.forward(values, rows), .key = {}};
  if (q_up_) {
    if (q_norm_) queries = normed(*q_norm_, queries);
    up.q = q_up_->forward(queries, rows);
  }
  up.key = share_key(parts[1]);
  if (!policy_.latent_up) return up;
  // In forward's order: ranks communicate.
  const Kept kv_again = kv_up_.again(values.kept, rows);
  const Kept q_again = q_up_ ? q_up_->again(queries.kept, rows) : queries.kept;
  up.again = [this, kv_again, q_again, kept_latent] {
    Projections second{.q = {}, .kv = kv_again.get(), .key = {}};
    second.q = q_again.get();
    second.key = share_key(kept_latent.get().narrow(1, kv_rank_, rope_dim_));
    return second;
  };
  return up;
}

Activation LatentAttention::normed(Norm& norm, const Activation& x) const {
  Activation y = norm.forward(x);
  if (policy_.latent_up) y.kept = norm.again(x.kept);
  return y;
}

at::Tensor LatentAttention::share_key(const at::Tensor& key) const {
  if (tp_->size() == 1) return key;
  SharedKeyFunction::Call call{tp_, is_sequence_parallel_, name_ + ".k_rope"};
  const at::Tensor all =
      is_recording({key}) ? SharedKeyFunction::apply(key, call) : SharedKeyFunction::compute(key, call);
  return as_shared(all, *tp_);
}

Activation LatentAttention::attend(const Projections& x, const Call& call) const {
  if (!is_recording({x.q, x.kv, x.key})) {
    AttentionCore::Tensors core = LatentCoreFunction::heads_of(*this, x, call);
    core_.compute(core, call.core);
    return LatentCoreFunction::as_tokens(core.out);
  }
  Kept kept;
  const at::Tensor out = LatentCoreFunction::apply(x.q, x.kv, x.key, this, call, x.again, &kept);
  return {out, kept};
}

at::Tensor LatentAttention::attend_with_cache(const Projections& projections, const ForwardContext& forward,
                                              const Call& call) const {
  const AttentionCore::Tensors core = LatentCoreFunction::assemble(*this, projections, call);
  return core_.attend_with_cache(core.q, core.k, core.v, forward).view({call.b * call.s, -1});
}

double LatentAttention::own_forward_flops(const CostShape& shape) const {
  const int64_t pairs = shape.b * shape.s * shape.s * core_.cp_size();
  return 2 * static_cast<double>(pairs * num_heads_ * (nope_dim_ + rope_dim_ + v_dim_));
}

}  // namespace megalith
