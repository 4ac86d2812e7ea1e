#include "nn/modulation.h"

#include <ATen/ATen.h>

#include <utility>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/layer_norm/layer_norm.h"

namespace megalith {

namespace {

constexpr const char* kModulationLabel = "modulation";

// Per-sample vectors are whole on every rank.
LayerContext without_split_tokens(LayerContext context) {
  context.is_sequence_parallel = false;
  return context;
}

}  // namespace

// (b, w) of each rank -> (b, w tp). is_partial: incoming gradients are summed over ranks.
struct GatherColumnsFunction : torch::autograd::Function<GatherColumnsFunction> {
  static at::Tensor compute(const at::Tensor& columns, Group* tp) {
    const at::Tensor all = tp->gathered(columns.contiguous(), kModulationLabel);
    const int64_t b = columns.size(0), w = columns.size(1);
    return all.view({tp->size(), b, w}).permute({1, 0, 2}).reshape({b, w * tp->size()});
  }

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& columns, Group* tp,
                            bool is_partial) {
    hold(node, std::pair(tp, is_partial));
    return compute(columns, tp);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto [tp, is_partial] = held<std::pair<Group*, bool>>(node);
    const at::Tensor& dy = gradients[0];
    const int64_t b = dy.size(0), w = dy.size(1) / tp->size();
    if (!is_partial) return {as_cut(dy.narrow(1, w * tp->rank(), w), *tp).contiguous(), {}, {}};
    const at::Tensor by_rank = dy.reshape({b, tp->size(), w}).transpose(0, 1).reshape({-1, w}).contiguous();
    return {tp->reduce_scattered(by_rank, ReduceOp::kSum, kModulationLabel), {}, {}};
  }
};

Modulation::Modulation(const LayerContext& context, const std::string& name, int64_t hidden, int64_t count)
    : hidden_(hidden),
      tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      linear_(without_split_tokens(context), name, hidden, count * hidden,
              {.role = LinearRole::kColumn, .has_bias = true, .weight_init = Init::constant(0)}) {
  register_module(linear_);
}

std::vector<at::Tensor> Modulation::forward(const at::Tensor& vec) {
  at::Tensor all = linear_.forward(at::silu(vec));
  if (tp_->size() > 1) {
    all = is_recording({all}) ? GatherColumnsFunction::apply(all, tp_, is_sequence_parallel_)
                              : GatherColumnsFunction::compute(all, tp_);
    if (is_sequence_parallel_) all = as_shared(all, *tp_);
  }
  return all.split(hidden_, 1);
}

struct ModulatedNormFunction : torch::autograd::Function<ModulatedNormFunction> {
  struct Call {
    Kept x;
    ModulatedNorm form;
  };
  struct Normalised {
    at::Tensor y, mean, inv_std;
  };

  // A norm with own weights per sample: one pass over the tokens.
  static Normalised compute(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                            const ModulatedNorm& form) {
    const int64_t b = shift.size(0);
    const at::Tensor samples = x.view({b, -1, x.size(1)});
    std::vector<at::Tensor> y, mean, inv_std;
    for (int64_t i = 0; i < b; ++i) {
      auto [one, its_mean, its_inv_std] = ops::layer_norm_forward(
          samples[i], scale[i].contiguous(), shift[i].contiguous(), form.epsilon, /*zero_centered_weight=*/true,
          form.kernels);
      y.push_back(std::move(one));
      mean.push_back(std::move(its_mean));
      inv_std.push_back(std::move(its_inv_std));
    }
    if (b == 1) return {y[0], mean[0], inv_std[0]};
    return {at::cat(y), at::cat(mean), at::cat(inv_std)};
  }

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& shift,
                            const at::Tensor& scale, const ModulatedNorm& form) {
    Normalised result = compute(x, shift, scale, form);
    node->save_for_backward({scale, result.mean, result.inv_std});
    hold(node, Call{Kept(x), form});
    return result.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const auto saved = node->get_saved_variables();
    const at::Tensor& scale = saved[0];
    const int64_t b = scale.size(0);
    const at::Tensor kept = call.x.take();
    const std::vector<int64_t> by_sample = {b, -1, kept.size(1)};
    const at::Tensor x = kept.view(by_sample), dy = gradients[0].contiguous().view(by_sample);
    const at::Tensor mean = saved[1].view({b, -1}), inv_std = saved[2].view({b, -1});
    std::vector<at::Tensor> dx, dshift, dscale;
    for (int64_t i = 0; i < b; ++i) {
      auto [one, of_scale, of_shift] =
          ops::layer_norm_backward(dy[i], x[i], scale[i].contiguous(), mean[i], inv_std[i],
                                   /*zero_centered_weight=*/true, call.form.kernels);
      dx.push_back(std::move(one));
      dscale.push_back(std::move(of_scale));
      dshift.push_back(std::move(of_shift));
    }
    const auto dtype = scale.scalar_type();
    return {b == 1 ? dx[0] : at::cat(dx), at::stack(dshift).to(dtype), at::stack(dscale).to(dtype), {}};
  }
};

Activation modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                          const ModulatedNorm& form) {
  MEGALITH_CHECK(x.size(0) % shift.size(0) == 0, "{} tokens of {} samples", x.size(0), shift.size(0));
  const at::Tensor y = is_recording({x, shift, scale}) ? ModulatedNormFunction::apply(x, shift, scale, form)
                                                       : ModulatedNormFunction::compute(x, shift, scale, form).y;
  if (!form.is_recomputed) return y;
  return {y, Kept(x).then([shift = shift.detach(), scale = scale.detach(), form](const at::Tensor& again) {
            return ModulatedNormFunction::compute(again, shift, scale, form).y;
          })};
}

at::Tensor gated_sum(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  const std::vector<int64_t> by_sample = {gate.size(0), -1, x.size(1)};
  return at::addcmul(x.view(by_sample), gate.unsqueeze(1), y.view(by_sample)).view(x.sizes());
}

}  // namespace megalith
