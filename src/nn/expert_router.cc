// The router: its product as a Function, and the order of what it decides. The decisions are in router_selection.cc,
// the objectives in expert_balance.cc, and what ranks tell one another in microbatch_tokens.cc.
#include "nn/expert_router.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
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
#include "ops/linear/linear.h"

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

// Uniform numbers of 1 - eps to 1 + eps by token and channel: (n, h) for row_ids (n).
template <typename T>
at::Tensor draw_jitter(const at::Tensor& row_ids, int64_t channels, double eps, uint64_t key) {
  if (row_ids.is_meta()) return at::empty({row_ids.size(0), channels}, row_ids.options().dtype<T>());
  const at::Tensor ids = row_ids.to(at::kCPU).contiguous();
  const at::Tensor noise = at::empty({ids.size(0), channels}, c10::CppTypeToScalarType<T>::value);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  T* out = noise.mutable_data_ptr<T>();
  at::parallel_for(0, ids.size(0), div_up(4096, std::max<int64_t>(channels, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t channel = 0; channel < channels; channel += 4) {
        const PhiloxBlock words = philox(key, {static_cast<uint64_t>(channel / 4), static_cast<uint64_t>(id[row])});
        const int64_t lanes = std::min<int64_t>(channels - channel, 4);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          const double u = uniform_from_word(words[static_cast<size_t>(lane)]);
          out[row * channels + channel + lane] = static_cast<T>(1 - eps + 2 * eps * u);
        }
      }
    }
  });
  return noise;
}

}  // namespace

// logits = x W^T, both operands in the product's dtype; the result in that of the scores.
struct RouterFunction : torch::autograd::Function<RouterFunction> {
  struct Call {
    ExpertRouter* router;
    bool needs_dx;
    at::ScalarType x_dtype;
  };

  // weight is there for the graph; its values are read from the Parameter.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            ExpertRouter* router, bool needs_dx) {
    expect_contribution(router->weight_);
    // Without a weight gradient x is not needed. It is kept as it came, which others may keep as well.
    node->save_for_backward({router->weight_->is_trainable() ? x : at::Tensor()});
    hold(node, Call{router, needs_dx, x.scalar_type()});
    return compute(*router, x);
  }

  static at::Tensor compute(const ExpertRouter& router, const at::Tensor& x) {
    const at::Tensor weight = router.weight_->data().to(router.product_dtype_);
    return ops::linear_forward(x.to(router.product_dtype_), weight, {}, router.kernels_).to(router.score_dtype_);
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
    return {dx, {}, {}, {}};
  }

  static void add_weight_gradient(const ExpertRouter& router, const at::Tensor& dlogits, const at::Tensor& x) {
    Parameter& weight = *router.weight_;
    const at::ScalarType wide = ops::wide_dtype(router.product_dtype_);
    if (wide == weight.grad_dtype()) {
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
  // Tokens are split over tp here even where the layers around have all of them on every rank.
  if (groups_->tp->size() > 1) weight.partial_axes.insert(Axis::kTp);
  weight_ = &register_parameter(site.weight_name, std::move(weight),
                                {.dtype = context.dtype,
                                 .device = context.device,
                                 .init = Init::normal(site.init_std),
                                 .role = ParameterRole::kRouter});
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
  // From here to the result rows are tokens: padding is neither routed nor counted.
  const at::Tensor logits = compute_logits(x, forward, tokens);
  const at::Tensor experts = choose(logits, forward, tokens);
  const at::Tensor weights = weigh_experts(logits, experts, options_).to(weight_dtype_);

  Result result{x, {}};
  Routing& routing = result.routing;
  routing.experts = tokens.padded(experts);
  routing.weights = tokens.padded(weights);
  // Tokens that are decoded come in pieces, on some layouts in several copies: of those at hand none is dropped.
  routing.capacity = forward.cache != nullptr ? 0 : expert_capacity(tokens.num_tokens(), options_);
  at::Tensor keep;
  if (routing.capacity > 0)
    keep = keep_within_capacity(experts, weights, routing.capacity, tokens);
  else if (tokens.has_padding())
    keep = at::ones(experts.sizes(), experts.options().dtype(at::kBool));
  if (keep.defined()) routing.keep = tokens.padded(keep);

  const bool attaches = forward.objective_scale != 0 && is_recording({logits});
  RouterTerms terms;
  if (has_router_terms(options_) && (attaches || forward.expert_records != nullptr)) {
    terms = compute_router_terms(logits, experts, options_, tokens, site_.weight_name + " balance");
  }
  if (attaches && terms.objective.defined()) {
    result.x = attach_objective(x, terms.objective * forward.objective_scale);
  }
  if (forward.expert_records != nullptr) {
    ExpertRecord& record = (*forward.expert_records)[site_.layer];
    record = {};
    record.counts = at::zeros({experts.size(0), options_.expert_count()}, experts.options().dtype(at::kBool))
                        .scatter_(1, experts, true)
                        .sum(0);
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
    const auto draw = product_dtype_ == at::kDouble ? draw_jitter<double> : draw_jitter<float>;
    const at::Tensor noise = draw(row_ids, site_.hidden, jitter_eps, jitter_key_);
    input = input.to(product_dtype_) * noise.to(x.device(), product_dtype_);
  }
  if (!is_recording({input, weight_->value()})) return RouterFunction::compute(*this, input);
  return RouterFunction::apply(input, weight_->value(), this, input.requires_grad());
}

at::Tensor ExpertRouter::choose(const at::Tensor& logits, const ForwardContext& forward,
                                const MicrobatchTokens& tokens) const {
  const at::NoGradGuard no_grad;
  const int64_t k = options_.moe_router_topk;
  if (options_.moe_router_force_load_balancing) {
    const auto integers = logits.options().dtype(at::kLong);
    const at::Tensor numbers = tokens.part(at::arange(tokens.num_tokens(), integers).unsqueeze(1));
    return (numbers * k + at::arange(k, integers)).remainder(options_.expert_count());
  }
  if (options_.moe_router_load_balancing_type == RouterBalancing::kSinkhorn && forward.is_training) {
    const at::Tensor shares = sinkhorn(tokens.gathered(logits, site_.weight_name + " logits"));
    return tokens.part(std::get<1>(at::topk(shares, k, 1)));
  }
  return select_experts(logits, bias_ == nullptr ? at::Tensor() : bias_->data(), options_);
}

at::Tensor ExpertRouter::keep_within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t capacity,
                                              const MicrobatchTokens& tokens) const {
  const int64_t k = options_.moe_router_topk, e = options_.expert_count();
  const std::string label = site_.weight_name + " choices";
  if (options_.moe_token_drop_policy == DropPolicy::kPosition) {
    // In Megatron-LM's order: its activations are (s, b, h), so a microbatch's sequences lose their ends alike.
    const at::Tensor all = tokens.by_position(tokens.gathered(experts, label));
    return tokens.part(tokens.by_sequence(within_capacity(all, {}, e, capacity)));
  }
  // Compared in fp32, also in fp64 models: tokens that are alike (the same word at the same place of two sequences)
  // have equal weights, which the rounding of one layout's products must not order. In one exchange: fp64 holds the
  // numbers of experts as it does the weights.
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
