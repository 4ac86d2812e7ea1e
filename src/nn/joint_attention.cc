#include "nn/joint_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "nn/function.h"
#include "ops/arguments.h"
#include "ops/rotary/rotary.h"

namespace megalith {

namespace {

NormOptions head_norm_options(double epsilon) {
  NormOptions options;
  options.normalization = Normalization::kRmsNorm;
  options.norm_epsilon = epsilon;
  return options;
}

// In float32: the operator would round the angles to x's dtype.
at::Tensor turned(const at::Tensor& x, const RotaryAngles& angles, bool turns_back, Kernels kernels) {
  const at::Tensor wide = x.to(ops::wide_dtype(x.scalar_type()));
  const at::Tensor y = turns_back ? ops::rotary_backward(wide, angles.cos, angles.sin, /*is_interleaved=*/true, kernels)
                                  : ops::rotary(wide, angles.cos, angles.sin, /*is_interleaved=*/true, kernels);
  return y.to(x.scalar_type());
}

}  // namespace

HeadNorms::HeadNorms(const LayerContext& context, const std::string& q_name, const std::string& k_name,
                     int64_t head_dim, int64_t num_heads, double epsilon)
    : q_(context, q_name, head_dim, head_norm_options(epsilon), num_heads),
      k_(context, k_name, head_dim, head_norm_options(epsilon), num_heads) {
  register_module(q_);
  register_module(k_);
}

struct JointAttentionFunction : torch::autograd::Function<JointAttentionFunction> {
  using Core = AttentionCore::Tensors;
  struct Call {
    const JointAttention* layer;
    AttentionCore::Call core;
    RotaryAngles angles;
    AttentionCore::KeptTensors kept = {};
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, Call call, Kept* kept_out) {
    const JointAttention& layer = *call.layer;
    const Core core = compute(q, k, v, call);
    call.kept = layer.core_.keep(core, call.core, layer.policy_.core_attention);
    if (layer.policy_.core_attention) *kept_out = call.kept.out;
    hold(node, std::move(call));
    return core.out;
  }

  static Core compute(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Call& call) {
    const Kernels kernels = call.layer->kernels_;
    Core core{.q = turned(q, call.angles, false, kernels),
              .k = turned(k, call.angles, false, kernels),
              .v = v,
              .out = {},
              .lse = {}};
    call.layer->core_.compute(core, call.core);
    return core;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const Core core = call.kept.take();
    const Kernels kernels = call.layer->kernels_;
    const ops::AttentionGradients d = call.layer->core_.backward(gradients[0].contiguous(), core, call.core);
    return {turned(d.dq, call.angles, true, kernels), turned(d.dk, call.angles, true, kernels), d.dv, {}, {}};
  }
};

JointAttention::JointAttention(const LayerContext& context, const std::string& name, int64_t num_heads,
                               int64_t head_dim, int64_t layer)
    : num_heads_(heads_of_rank(num_heads, context, "num_attention_heads")),
      head_dim_(head_dim),
      policy_(context.recompute),
      kernels_(context.kernels),
      core_(context, name, layer, 1 / std::sqrt(static_cast<double>(head_dim)), /*dropout=*/0, num_heads_,
            num_heads_) {}

Activation JointAttention::forward(const std::vector<Part>& parts, int64_t b, int64_t ranks,
                                   const RotaryAngles& angles) {
  const int64_t n = num_heads_, d = head_dim_;
  std::vector<at::Tensor> q, k, v;
  for (const Part& part : parts) {
    const at::Tensor heads = part.qkv.view({ranks, b, part.qkv.size(0) / (ranks * b), 3, n, d});
    const auto of_samples = [&](int64_t which) { return heads.select(3, which).transpose(0, 1); };
    const auto normed = [&](Norm& norm, int64_t which) {
      return norm.forward(of_samples(which).reshape({-1, d}).contiguous()).view({b, -1, n, d});
    };
    q.push_back(normed(part.norms->q(), 0));
    k.push_back(normed(part.norms->k(), 1));
    // A view would keep the whole projection alive.
    v.push_back(of_samples(2).contiguous().view({b, -1, n, d}));
  }
  const auto joined = [](const std::vector<at::Tensor>& all) { return all.size() == 1 ? all[0] : at::cat(all, 1); };
  const at::Tensor queries = joined(q), keys = joined(k), values = joined(v);
  MEGALITH_CHECK(queries.size(1) == angles.cos.size(1), "{} tokens, and angles of {}", queries.size(1),
                 angles.cos.size(1));
  ForwardContext context;
  context.b = b;
  context.s = queries.size(1);
  context.mask.is_causal = false;
  const JointAttentionFunction::Call call{this, core_.make_call(context), angles};
  const std::vector<int64_t> tokens = {b, queries.size(1), n * d};
  if (!is_recording({queries, keys, values})) {
    return JointAttentionFunction::compute(queries, keys, values, call).out.view(tokens);
  }
  Kept kept;
  const at::Tensor out = JointAttentionFunction::apply(queries, keys, values, call, &kept);
  if (!kept.is_defined()) return out.view(tokens);
  return {out.view(tokens), kept.then([tokens](const at::Tensor& again) { return again.view(tokens); })};
}

double JointAttention::own_forward_flops(const CostShape& shape) const {
  const auto tokens = static_cast<double>(shape.s + shape.encoder_s);
  return 4 * static_cast<double>(shape.b * num_heads_ * head_dim_) * tokens * tokens;
}

}  // namespace megalith
