// Arithmetic is in ops/router, objectives in expert_balance.cc, exchanges in microbatch_tokens.cc.
#include "nn/expert_router.h"

#include <ATen/ATen.h>

#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/expert_balance.h"
#include "nn/function.h"
#include "nn/microbatch_tokens.h"
#include "nn/option_rules.h"
#include "nn/router_selection.h"
#include "ops/arguments.h"
#include "ops/jitter/jitter.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"
#include "ops/sinkhorn/sinkhorn.h"

namespace megalith {
namespace {

at::ScalarType product_dtype(RouterPrecision precision, at::ScalarType of_model) {
  switch (precision) {
    case RouterPrecision::kFp32:
      return at::kFloat;
    case RouterPrecision::kFp64:
      return at::kDouble;
    case RouterPrecision::kModel:
      break;
  }
  return of_model;
}

}  // namespace

// The product's dtype in, the scores' out.
struct RouterFunction : torch::autograd::Function<RouterFunction> {
  struct Call {
    ExpertRouter* router;
    bool needs_dx;
    at::ScalarType x_dtype;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const at::Tensor& /*bias*/, ExpertRouter* router, bool needs_dx) {
    expect_contribution(router->weight_);
    expect_contribution(router->linear_bias_);
    // Kept uncast, so others may share it.
    node->save_for_backward({router->weight_->is_trainable() ? x : at::Tensor()});
    hold(node, Call{router, needs_dx, x.scalar_type()});
    return compute(*router, x);
  }

  static at::Tensor compute(const ExpertRouter& router, const at::Tensor& x) {
    const at::Tensor weight = router.weight_->data().to(router.product_dtype_);
    at::Tensor bias;
    if (router.linear_bias_ != nullptr) bias = router.linear_bias_->data().to(router.product_dtype_);
    return ops::linear_forward(x.to(router.product_dtype_), weight, bias, router.kernels_).to(router.score_dtype_);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const Call& call = held<Call>(node);
    const ExpertRouter& router = *call.router;
    const at::ScalarType dtype = router.product_dtype_;
    const at::Tensor dlogits = gradients[0].contiguous().to(dtype);
    at::Tensor dx;
    if (call.needs_dx) {
      dx = ops::linear_dgrad(dlogits, router.weight_->data().to(dtype), router.kernels_).to(call.x_dtype);
    }
    if (router.weight_->is_trainable()) {
      add_weight_gradient(router, dlogits, node->get_saved_variables()[0].to(dtype));
    }
    if (router.linear_bias_ != nullptr && router.linear_bias_->is_trainable()) {
      router.linear_bias_->add_grad(gradients[0].sum(0, /*keepdim=*/false, router.score_dtype_));
    }
    return {dx, {}, {}, {}, {}};
  }

  static void add_weight_gradient(const ExpertRouter& router, const at::Tensor& dlogits, const at::Tensor& x) {
    Parameter& weight = *router.weight_;
    const at::ScalarType wide = ops::wide_dtype(router.product_dtype_);
    if (wide == weight.wide_dtype()) {
      const Parameter::GradTarget target = weight.open_grad();
      ops::linear_wgrad_(target.buffer, dlogits, x, target.accumulate, router.kernels_);
      weight.close_grad();
    } else {  // an fp64 product of an fp32 or bf16 model
      const at::Tensor dweight = at::empty(weight.value().sizes(), x.options().dtype(wide));
      ops::linear_wgrad_(dweight, dlogits, x, /*accumulate=*/false, router.kernels_);
      weight.add_grad(dweight);
    }
  }
};

// Backward draws the noise again.
struct JitterFunction : torch::autograd::Function<JitterFunction> {
  struct Call {
    double eps;
    uint64_t key;
    Kernels kernels;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& row_ids,
                            const Call& call) {
    node->save_for_backward({row_ids});
    hold(node, call);
    return ops::jitter(x, row_ids, call.eps, call.key, call.kernels);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const Call& call = held<Call>(node);
    const at::Tensor row_ids = node->get_saved_variables()[0];
    return {ops::jitter(gradients[0].contiguous(), row_ids, call.eps, call.key, call.kernels), {}, {}};
  }
};

// Differentiable in weights and computed sums.
struct RouteFunction : torch::autograd::Function<RouteFunction> {
  struct Call {
    at::Tensor bias, experts;
    ops::RouterForm form;
    ops::RouterSums sums;
    Kernels kernels;

    ops::RoutedTokens run(const at::Tensor& logits) const {
      return ops::route_tokens(logits, bias, experts, form, sums, kernels);
    }
  };

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, const at::Tensor& logits,
                                                Call call, ops::RoutedTokens* routed) {
    *routed = call.run(logits);
    node->save_for_backward({logits, routed->experts});
    node->set_materialize_grads(false);
    call.bias = call.experts = at::Tensor();
    hold(node, std::move(call));
    torch::autograd::variable_list differentiable{routed->weights};
    if (routed->score_sums.defined()) differentiable.push_back(routed->score_sums);
    if (routed->z_sum.defined()) differentiable.push_back(routed->z_sum);
    return differentiable;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const Call& call = held<Call>(node);
    const auto saved = node->get_saved_variables();
    ops::RoutedGradients of_results{.weights = gradients[0]};
    size_t next = 1;
    if (call.sums.has_balance) of_results.score_sums = gradients[next++];
    if (call.sums.has_z) of_results.z_sum = gradients[next];
    return {ops::route_tokens_backward(saved[0], saved[1], of_results, call.form, call.sums, call.kernels), {}, {}};
  }

  static ops::RoutedTokens route(const at::Tensor& logits, const Call& call) {
    if (!is_recording({logits})) return call.run(logits);
    ops::RoutedTokens routed;
    const torch::autograd::variable_list differentiable = apply(logits, call, &routed);
    size_t next = 0;
    routed.weights = differentiable[next++];
    if (routed.score_sums.defined()) routed.score_sums = differentiable[next++];
    if (routed.z_sum.defined()) routed.z_sum = differentiable[next];
    return routed;
  }
};

ExpertRouter::ExpertRouter(const LayerContext& context, const RouterOptions& options, const RouterSite& site)
    : options_(options),
      site_(site),
      groups_(context.groups),
      kernels_(context.kernels),
      jitter_key_(make_philox_key(context.seed, "jitter." + site.weight_name)),
      product_dtype_(product_dtype(options.moe_router_dtype, context.dtype)),
      weight_dtype_(ops::wide_dtype(context.dtype)),
      score_dtype_(product_dtype_ == at::kDouble ? at::kDouble : weight_dtype_) {
  require_options(site.weight_name, options, check_router);
  Placement weight = Placement::whole(site.weight_name, {options.expert_count(), site.hidden});
  weight.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
  weight.partial_axes = {Axis::kDp, Axis::kCp};
  // Tokens are split over tp here even without sequence parallelism.
  if (groups_->tp->size() > 1) weight.partial_axes.insert(Axis::kTp);
  weight_ = &register_parameter(site.weight_name, std::move(weight),
                                {.dtype = context.dtype,
                                 .device = context.device,
                                 .init = Init::normal(site.init_std),
                                 .role = ParameterRole::kRouter});
  if (!site.linear_bias_name.empty()) {
    Placement of_product = Placement::whole(site.linear_bias_name, {options.expert_count()});
    of_product.replica_axes = weight_->placement().replica_axes;
    of_product.partial_axes = weight_->placement().partial_axes;
    linear_bias_ = &register_parameter(site.linear_bias_name, std::move(of_product),
                                       {.dtype = context.dtype,
                                        .device = context.device,
                                        .init = Init::constant(0),
                                        .decay_mult = 0,
                                        .role = ParameterRole::kVector});
  }
  if (!options.moe_router_enable_expert_bias) return;
  Placement bias = Placement::whole(site.bias_name, {options.expert_count()});
  bias.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
  bias_ = &register_parameter(site.bias_name, std::move(bias),
                              {.dtype = weight_dtype_,
                               .device = context.device,
                               .init = Init::constant(0),
                               .is_trainable = false,
                               .decay_mult = 0,
                               .role = ParameterRole::kVector});
}

ExpertRouter::Result ExpertRouter::forward(const at::Tensor& x, const ForwardContext& forward, int64_t num_tokens) {
  MEGALITH_CHECK(x.dim() == 2 && x.size(1) == site_.hidden, "{}: x has {} dims and {} channels of {}",
                 site_.weight_name, x.dim(), x.size(-1), site_.hidden);
  const MicrobatchTokens tokens(*groups_, forward, x.size(0), num_tokens);
  const at::Tensor logits = compute_logits(x, forward, tokens);
  const bool attaches = forward.objective_scale != 0 && is_recording({logits});
  const bool has_records = forward.expert_records != nullptr;
  const bool has_terms = has_router_terms(options_) && (attaches || has_records);
  const ops::RoutedTokens routed =
      RouteFunction::route(logits, {.bias = bias_ == nullptr ? at::Tensor() : bias_->data().to(logits.scalar_type()),
                                    .experts = choose_for_all(logits, forward, tokens),
                                    .form = router_form(options_),
                                    .sums = router_sums(options_, tokens, has_terms, has_records),
                                    .kernels = kernels_});
  const at::Tensor& experts = routed.experts;
  const at::Tensor weights = routed.weights.to(weight_dtype_);

  Result result{x, {}};
  Routing& routing = result.routing;
  routing.experts = tokens.padded(experts);
  routing.weights = tokens.padded(weights);
  // Decoding sees tokens in pieces, on some layouts several times.
  routing.capacity = forward.cache != nullptr ? 0 : expert_capacity(tokens.num_tokens(), options_);
  at::Tensor keep;
  if (routing.capacity > 0)
    keep = keep_within_capacity(experts, weights, routing.capacity, tokens);
  else if (tokens.has_padding())
    keep = at::ones(experts.sizes(), experts.options().dtype(at::kBool));
  if (keep.defined()) routing.keep = tokens.padded(keep);

  RouterTerms terms;
  at::Tensor mean_counts;
  if (has_records) mean_counts = (*forward.expert_records)[site_.layer].mean_counts;
  if (has_terms) {
    const StepBalance step{step_counts_, *groups_->dp, mean_counts};
    terms = compute_router_terms(routed, options_, tokens, site_.weight_name + " balance",
                                 options_.balances_over_step() && forward.is_training ? &step : nullptr);
  }
  if (attaches && terms.objective.defined()) {
    result.x = attach_objective(x, terms.objective * forward.objective_scale);
  }
  if (has_records) {
    ExpertRecord& record = (*forward.expert_records)[site_.layer];
    record = {};
    record.counts = routed.loads;
    record.mean_counts = mean_counts;
    if (terms.balance_loss.defined()) record.balance_loss = terms.balance_loss.to(weight_dtype_);
    if (terms.z_loss.defined()) record.z_loss = terms.z_loss.to(weight_dtype_);
    if (routing.capacity > 0 && !keep.is_meta()) record.num_dropped = keep.logical_not().sum();
  }
  return result;
}

at::Tensor ExpertRouter::compute_logits(const at::Tensor& x, const ForwardContext& forward,
                                        const MicrobatchTokens& tokens) {
  at::Tensor input = tokens.num_real() == x.size(0) ? x : x.narrow(0, 0, tokens.num_real());
  const double jitter_eps = options_.moe_input_jitter_eps.value_or(0);
  if (jitter_eps != 0 && forward.is_training) {
    MEGALITH_CHECK(forward.row_ids.defined(), "{}: jitter needs the global numbers of the tokens", site_.weight_name);
    const at::Tensor row_ids = forward.row_ids.reshape({-1}).narrow(0, tokens.first(), tokens.num_real());
    const JitterFunction::Call call{jitter_eps, jitter_key_, kernels_};
    input = input.to(product_dtype_);
    input = is_recording({input}) ? JitterFunction::apply(input, row_ids, call)
                                  : ops::jitter(input, row_ids, call.eps, call.key, call.kernels);
  }
  const at::Tensor bias = linear_bias_ != nullptr ? linear_bias_->value() : at::empty({0}, input.options());
  const at::Tensor logits =
      is_recording({input, weight_->value(), bias})
          ? RouterFunction::apply(input, weight_->value(), bias, this, input.requires_grad())
          : RouterFunction::compute(*this, input);
  const double softcap = options_.router_logit_softcapping.value_or(0);
  return softcap == 0 ? logits : logits.div(softcap).tanh() * softcap;
}

at::Tensor ExpertRouter::choose_for_all(const at::Tensor& logits, const ForwardContext& forward,
                                        const MicrobatchTokens& tokens) const {
  const at::NoGradGuard no_grad;
  const int64_t k = options_.moe_router_topk;
  if (options_.moe_router_force_load_balancing) {
    const auto integers = logits.options().dtype(at::kLong);
    const at::Tensor numbers = tokens.part(at::arange(tokens.num_tokens(), integers).unsqueeze(1));
    return (numbers * k + at::arange(k, integers)).remainder(options_.expert_count());
  }
  if (options_.moe_router_load_balancing_type == RouterBalancing::kSinkhorn && forward.is_training) {
    const at::Tensor shares = ops::sinkhorn(tokens.gathered(logits, site_.weight_name + " logits"), kernels_);
    return ops::route_tokens(tokens.part(shares).contiguous(), {}, {}, {.num_chosen = k}, {}, kernels_).experts;
  }
  return {};
}

at::Tensor ExpertRouter::keep_within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t capacity,
                                              const MicrobatchTokens& tokens) const {
  const int64_t k = options_.moe_router_topk, e = options_.expert_count();
  const std::string label = site_.weight_name + " choices";
  if (options_.moe_token_drop_policy == DropPolicy::kPosition) {
    // Megatron-LM's (s, b) order: sequences lose their ends alike.
    const at::Tensor all = tokens.by_position(tokens.gathered(experts, label));
    return tokens.part(tokens.by_sequence(within_capacity(all, {}, e, capacity)));
  }
  // fp32 even for fp64 models: rounding must not order equal tokens (the same word and position in two sequences). One
  // exchange: fp64 also holds expert numbers.
  const at::Tensor compared = weights.detach().to(at::kFloat).to(at::kDouble);
  const at::Tensor pairs = at::cat({experts.to(at::kDouble), compared}, 1);
  const at::Tensor all = tokens.gathered(pairs, label);
  return tokens.part(within_capacity(all.narrow(1, 0, k).to(at::kLong), all.narrow(1, k, k), e, capacity));
}

double ExpertRouter::own_forward_flops(const CostShape& shape) const {
  const int64_t tokens = div_up(shape.b * shape.s, groups_->tp->size());
  return 2 * static_cast<double>(tokens) * static_cast<double>(options_.expert_count() * site_.hidden);
}

void update_expert_bias(Parameter& bias, const at::Tensor& counts, double rate) {
  const at::Tensor value = bias.data();
  MEGALITH_CHECK(counts.sizes() == value.sizes(), "{}: {} counts for {} experts", bias.name(), counts.numel(),
                 value.numel());
  const at::Tensor wide = counts.to(value.device(), at::kDouble);
  value.add_((wide.mean() - wide).sign().to(value.scalar_type()), rate);
}

}  // namespace megalith
