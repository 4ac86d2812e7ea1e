// One Function spans rotation, assembling of queries and keys, and attention, as in attention.cc: what the projections
// give is not kept beside the heads, and their gradients are written where they belong.
#include "nn/latent_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "nn/recompute.h"
#include "ops/rotary/rotary.h"

namespace megalith {

namespace {

// The input is given back once, and num_users projections want it.
RestoreInput restore_for(int num_users, const RestoreInput& restore) {
  if (!restore) return {};
  struct Shared {
    RestoreInput restore;
    int num_users;
    at::Tensor x;  // from the first call to the last
  };
  return [shared = std::make_shared<Shared>(Shared{restore, num_users, {}})] {
    if (shared->restore) shared->x = std::exchange(shared->restore, {})();
    return --shared->num_users == 0 ? std::exchange(shared->x, {}) : shared->x;
  };
}

// The part of a key that all heads read: every tp rank's heads send it a gradient.
struct SharedKeyFunction : torch::autograd::Function<SharedKeyFunction> {
  struct Call {
    Group* tp;
    bool gathers;  // each rank has its own tokens, not all
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
  // Where the core is computed again in backward, as in attention.cc; otherwise the node saves the tensors.
  std::shared_ptr<AttentionCore::Tensors> shared = {};
  // Where the heads are projected again: out and lse alone, from the first pass to the second.
  std::shared_ptr<AttentionCore::Tensors> first_pass = {};
};

struct LatentCoreFunction : torch::autograd::Function<LatentCoreFunction> {
  using Call = LatentAttention::Call;
  using Core = AttentionCore::Tensors;

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& q, const at::Tensor& kv,
                            const at::Tensor& key, const LatentAttention* layer, const Call& call) {
    Core core = assemble(*layer, {q, kv, key}, call);
    layer->core_.exchange(core, call.core);
    if (call.first_pass && call.first_pass->out.defined()) {
      core.out = std::exchange(call.first_pass->out, {});
      core.lse = std::exchange(call.first_pass->lse, {});
    } else {
      layer->core_.compute(core, call.core);
    }
    if (call.shared) {
      *call.shared = {.q = core.q, .k = core.k, .v = core.v, .out = {}, .lse = {}};
    } else {
      node->save_for_backward({core.q, core.k, core.v, core.out, core.lse});
    }
    hold(node, std::pair(layer, call));
    return core.out.view({call.b * call.s, -1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    auto& [layer_address, call] = held<std::pair<const LatentAttention*, Call>>(node);
    const LatentAttention& layer = *layer_address;
    const auto saved = node->get_saved_variables();
    // Taken from the node, which lives until the whole backward pass is done.
    const auto shared = std::exchange(call.shared, {});
    if (shared && !shared->out.defined()) layer.core_.compute(*shared, call.core);  // a frozen projection did not ask
    const Core core = shared ? std::exchange(*shared, {}) : Core{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const at::Tensor dout = gradients[0].contiguous().view(core.out.sizes());
    const ops::AttentionGradients d = layer.core_.backward(dout, core, call.core);
    const int64_t tokens = call.b * call.s, nope = layer.options_.nope_dim, rope = layer.options_.rope_dim;
    const auto unrotated = [&](const at::Tensor& dy) {
      if (!call.angles.cos.defined()) return dy;
      return ops::rotary_backward(dy, call.angles.cos, call.angles.sin, layer.options_.is_rotary_interleaved,
                                  layer.kernels_);
    };
    const at::Tensor dq_rope = d.dq.narrow(3, nope, rope);
    if (call.angles.cos.defined()) dq_rope.copy_(unrotated(dq_rope));  // in attention's own result
    const at::Tensor dkey = unrotated(d.dk.narrow(3, nope, rope).sum(2, /*keepdim=*/true));
    const at::Tensor dkv = at::cat({d.dk.narrow(3, 0, nope), d.dv}, 3);
    return {d.dq.reshape({tokens, -1}), dkv.view({tokens, -1}), dkey.reshape({tokens, rope}), {}, {}};
  }

  // Queries and keys with their rotary parts behind the others; all contiguous copies, or views would keep the whole
  // projections alive.
  static Core assemble(const LatentAttention& layer, const LatentAttention::Projections& x, const Call& call) {
    const LatentAttentionOptions& options = layer.options_;
    const int64_t b = call.b, s = call.s, n = layer.num_heads_, nope = options.nope_dim, rope = options.rope_dim;
    const auto rotated = [&](const at::Tensor& part) {
      if (!call.angles.cos.defined()) return part;
      return ops::rotary(part, call.angles.cos, call.angles.sin, options.is_rotary_interleaved, layer.kernels_);
    };
    const at::Tensor q = x.q.view({b, s, n, nope + rope}), kv = x.kv.view({b, s, n, nope + options.v_dim});
    const at::Tensor key_rope = rotated(x.key.view({b, s, 1, rope})).expand({b, s, n, rope});
    return {.q = at::cat({q.narrow(3, 0, nope), rotated(q.narrow(3, nope, rope))}, 3),
            .k = at::cat({kv.narrow(3, 0, nope), key_rope}, 3),
            .v = kv.narrow(3, nope, options.v_dim).contiguous(),
            .out = {},
            .lse = {}};
  }
};

LatentAttention::LatentAttention(const LayerContext& context, const std::string& name,
                                 const LatentAttentionOptions& options)
    : options_(options),
      name_(name),
      tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      num_heads_(heads_of_rank(options.num_heads, context, "num_attention_heads")),
      recomputes_core_(context.recompute.core_attention),
      recomputes_up_(context.recompute.latent_up),
      kernels_(context.kernels),
      core_(context, name, options.layer,
            options.softmax_factor / std::sqrt(static_cast<double>(options.nope_dim + options.rope_dim)),
            options.dropout, num_heads_, num_heads_),
      kv_down_(context, name + ".kv_a_proj_with_mqa", options.hidden, options.kv_rank + options.rope_dim,
               {.init_std = options.init_std, .keeps_input = options.keeps_input}),
      kv_up_(context, name + ".kv_b_proj", options.kv_rank, options.num_heads * (options.nope_dim + options.v_dim),
             {.role = LinearRole::kColumn, .init_std = options.init_std}),
      output_(context, name + ".o_proj", options.num_heads * options.v_dim, options.hidden,
              {.role = LinearRole::kRow,
               .init_std = options.output_init_std,
               .keeps_input = !recomputes_core_ || recomputes_up_}) {
  const int64_t q_rows = options.num_heads * (options.nope_dim + options.rope_dim);
  const NormOptions norm{.kind = NormKind::kRms, .eps = options.latent_norm_eps};
  const LinearOptions of_input{.init_std = options.init_std, .keeps_input = options.keeps_input};
  const LinearOptions column{.role = LinearRole::kColumn, .init_std = options.init_std};
  if (options.q_rank == 0) {
    LinearOptions direct = of_input;
    direct.role = LinearRole::kColumn;
    q_ = std::make_unique<Linear>(context, name + ".q_proj", options.hidden, q_rows, direct);
    register_module(*q_);
  } else {
    q_down_ = std::make_unique<Linear>(context, name + ".q_a_proj", options.hidden, options.q_rank, of_input);
    q_up_ = std::make_unique<Linear>(context, name + ".q_b_proj", options.q_rank, q_rows, column);
    register_module(*q_down_);
    if (options.has_latent_norms) {
      q_norm_ = std::make_unique<Norm>(context, name + ".q_a_layernorm", options.q_rank, norm);
      register_module(*q_norm_);
    }
    register_module(*q_up_);
  }
  register_module(kv_down_);
  if (options.has_latent_norms) {
    kv_norm_ = std::make_unique<Norm>(context, name + ".kv_a_layernorm", options.kv_rank, norm);
    register_module(*kv_norm_);
  }
  register_module(kv_up_);
  register_module(output_);
}

at::Tensor LatentAttention::forward(const at::Tensor& x, const ForwardContext& forward, const RotaryAngles& angles,
                                    const RestoreInput& restore) {
  Linear& q_projection = q_ ? *q_ : *q_down_;
  const int num_users = (q_projection.weight().is_trainable() ? 1 : 0) + (kv_down_.weight().is_trainable() ? 1 : 0);
  const RestoreInput shared_restore = restore_for(num_users, restore);
  // Queries, or their latent, and the latent of keys and values with the key's rotary part behind it.
  const at::Tensor q = q_projection.forward(x, shared_restore), latent = kv_down_.forward(x, shared_restore);

  Call call{forward.b, forward.s, core_.make_call(forward), angles};
  MEGALITH_CHECK(latent.size(0) * (is_sequence_parallel_ ? tp_->size() : 1) == call.b * call.s,
                 "{} tokens, but b {} and s {}", latent.size(0), call.b, call.s);
  if (recomputes_up_ && forward.cache == nullptr) {
    if (!recomputes_core_) call.first_pass = std::make_shared<AttentionCore::Tensors>();
    const BlockBody body = [this, call](const std::vector<at::Tensor>& inputs) {
      const at::Tensor out = attend(project_up(inputs[0], inputs[1]), call);
      return std::vector<at::Tensor>{recomputes_core_ ? output_.forward(out) : out};
    };
    std::vector<Parameter*> parameters;
    for (const Module* module : up_modules()) {
      for (Parameter* parameter : module->parameters()) parameters.push_back(parameter);
    }
    const at::Tensor out = recomputed(body, {q, latent}, parameters)[0];
    return recomputes_core_ ? out : output_.forward(out);
  }
  const Projections projections = project_up(q, latent);
  const bool is_recorded = is_recording({projections.q, projections.kv, projections.key});
  if (forward.cache != nullptr) {
    MEGALITH_CHECK(!is_recorded, "a KV cache keeps no graph");
    return output_.forward(attend_with_cache(projections, forward, call));
  }
  if (!recomputes_core_ || !is_recorded) {
    const at::Tensor out = attend(projections, call);
    return output_.forward(out, [out = out.detach()] { return out; });
  }
  call.shared = std::make_shared<AttentionCore::Tensors>();
  const at::Tensor out = attend(projections, call);
  return output_.forward(out, [this, call = std::move(call)] {
    core_.compute(*call.shared, call.core);
    return call.shared->out.view({call.b * call.s, -1});
  });
}

// From the results of the first projections.
LatentAttention::Projections LatentAttention::project_up(const at::Tensor& q, const at::Tensor& latent) {
  const std::vector<at::Tensor> parts = latent.split_with_sizes({options_.kv_rank, options_.rope_dim}, 1);
  const at::Tensor values = parts[0].contiguous();
  Projections up{.q = q, .kv = kv_up_.forward(kv_norm_ ? kv_norm_->forward(values) : values), .key = {}};
  if (q_up_) up.q = q_up_->forward(q_norm_ ? q_norm_->forward(q) : q);
  up.key = share_key(parts[1]);
  return up;
}

at::Tensor LatentAttention::share_key(const at::Tensor& key) const {
  if (tp_->size() == 1) return key;
  SharedKeyFunction::Call call{tp_, is_sequence_parallel_, name_ + ".k_rope"};
  return is_recording({key}) ? SharedKeyFunction::apply(key, call) : SharedKeyFunction::compute(key, call);
}

// The modules that SelectiveRecompute::latent_up runs again.
std::vector<const Module*> LatentAttention::up_modules() const {
  std::vector<const Module*> all = {&kv_up_};
  for (const Module* module : {static_cast<const Module*>(q_norm_.get()), static_cast<const Module*>(q_up_.get()),
                               static_cast<const Module*>(kv_norm_.get())}) {
    if (module != nullptr) all.push_back(module);
  }
  if (recomputes_core_) all.push_back(&output_);
  return all;
}

// (t, n d_v)
at::Tensor LatentAttention::attend(const Projections& x, const Call& call) const {
  if (is_recording({x.q, x.kv, x.key})) return LatentCoreFunction::apply(x.q, x.kv, x.key, this, call);
  AttentionCore::Tensors core = LatentCoreFunction::assemble(*this, x, call);
  core_.exchange(core, call.core);
  core_.compute(core, call.core);
  if (call.first_pass) *call.first_pass = {.q = {}, .k = {}, .v = {}, .out = core.out, .lse = core.lse};
  return core.out.view({call.b * call.s, -1});
}

at::Tensor LatentAttention::attend_with_cache(const Projections& projections, const ForwardContext& forward,
                                              const Call& call) const {
  const AttentionCore::Tensors core = LatentCoreFunction::assemble(*this, projections, call);
  return core_.attend_with_cache(core.q, core.k, core.v, forward).view({call.b * call.s, -1});
}

// ---- Costs ----

int64_t LatentAttention::tokens_of_rank(const CostShape& shape) const {
  return shape.b * shape.s / (is_sequence_parallel_ ? tp_->size() : 1);
}

// q, k, v and the log-sum-exp; attention's output is what the projection after it keeps.
int64_t LatentAttention::kept_core_bytes(const CostShape& shape) const {
  const int64_t head = 2 * (options_.nope_dim + options_.rope_dim) + options_.v_dim;
  return shape.b * shape.s * num_heads_ * (head * shape.activation_bytes + (recomputes_core_ ? 0 : 4));
}

LayerCost LatentAttention::own_cost(const CostShape& shape) const {
  const int64_t pairs = shape.b * shape.s * shape.s * core_.cp_size();
  const int64_t channels = options_.nope_dim + options_.rope_dim + options_.v_dim;
  LayerCost cost{.forward_flops = 2 * static_cast<double>(pairs * num_heads_ * channels),
                 .kept_bytes = kept_core_bytes(shape)};
  // Both first projections keep one tensor.
  const Linear& q_projection = q_ ? *q_ : *q_down_;
  if (options_.keeps_input && q_projection.weight().is_trainable() && kv_down_.weight().is_trainable()) {
    cost.kept_bytes -= tokens_of_rank(shape) * options_.hidden * shape.activation_bytes;
  }
  return cost;
}

LayerCost LatentAttention::cost(const CostShape& shape) const {
  LayerCost cost = Module::cost(shape);
  if (!recomputes_up_) return cost;
  // Of the core only its statistics are kept, or nothing at all; they come again with the rest then.
  const int64_t statistics = shape.b * shape.s * num_heads_ * 4;
  int64_t again = kept_core_bytes(shape) + (recomputes_core_ ? statistics : -statistics);
  for (const Module* module : up_modules()) again += module->cost(shape).kept_bytes;
  const int64_t q = q_ ? shape.b * shape.s * num_heads_ * (options_.nope_dim + options_.rope_dim)
                       : tokens_of_rank(shape) * options_.q_rank;
  const int64_t latent = tokens_of_rank(shape) * (options_.kv_rank + options_.rope_dim);
  cost.kept_bytes += (q + latent) * shape.activation_bytes + (recomputes_core_ ? statistics : 0) - again;
  cost.recomputed_bytes = std::max(cost.recomputed_bytes, again);
  return cost;
}

int64_t LatentAttention::backward_bytes(const CostShape& shape) const {
  const int64_t tokens = shape.b * shape.s, bytes = shape.activation_bytes;
  const int64_t nope = options_.nope_dim, rope = options_.rope_dim, v = options_.v_dim;
  // At the end the gradients of out, of q, k and v, of the queries' rotary part before the rotation, and of the
  // projection that gave keys and values.
  const int64_t at_end = tokens * num_heads_ * (v + 2 * (nope + rope) + v + rope + nope + v) * bytes;
  const int64_t stream = tokens_of_rank(shape) * options_.hidden * bytes;  // its gradient passes attention by
  return stream + core_.backward_bytes(shape, nope + rope, v, at_end);
}

}  // namespace megalith
