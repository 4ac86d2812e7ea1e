#include "nn/lm_head.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "device/memory.h"
#include "nn/dropout.h"
#include "nn/function.h"
#include "nn/loss_rows.h"
#include "nn/low_rank_adapter.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace megalith {

struct HeadAdapter {
  std::unique_ptr<Linear> down;
  Parameter* up = nullptr;  // the head's
  int64_t hidden = 0;
  double scale = 1, dropout = 0;
  bool drops_input = true;
  uint64_t dropout_key = 0;

  at::Tensor inputs(const at::Tensor& widened) const { return widened.narrow(1, 0, hidden).contiguous(); }
  at::Tensor low(const at::Tensor& widened) const {
    return widened.narrow(1, hidden, widened.size(1) - hidden).contiguous();
  }
};

struct LmLossFunction : torch::autograd::Function<LmLossFunction> {
  // with_grad: of x (this rank's tokens) and the weight. row_scale (t) wide: 0 for ignored tokens.
  struct Result {
    at::Tensor losses, dx;
  };
  static Result compute(LmHead& head, const at::Tensor& local_x, const at::Tensor& labels, const at::Tensor& row_scale,
                        bool with_grad) {
    const std::string& label = head.weight_->name();
    const at::Tensor x = head.is_sequence_parallel_ ? head.tp_->gathered(local_x, label) : local_x;
    const at::Tensor weight = head.weight_->data();
    const at::Tensor dw = with_grad ? opened_gradient(head.weight_) : at::Tensor();
    if (head.tp_->size() == 1 && head.softcap_ == 0 && head.bias_ == nullptr && head.adapter_ == nullptr) {
      auto [losses, dx] = ops::linear_cross_entropy(
          x, weight, labels, row_scale, with_grad, dw,
          {.valid_vocab = head.local_valid_, .chunk_rows = head.rows_at_a_time(x), .kernels = head.recipe_->kernels()});
      return {losses, dx};
    }
    const at::Tensor dbias = with_grad ? opened_gradient(head.bias_) : at::Tensor();
    const HeadAdapter* adapter = head.adapter_.get();
    const at::Tensor dup = with_grad && adapter != nullptr ? opened_gradient(adapter->up) : at::Tensor();
    Result result = vocabulary_parallel(head, x, labels, row_scale, with_grad, {dw, dbias, dup});
    if (with_grad) {
      if (head.is_sequence_parallel_)
        result.dx = head.tp_->reduce_scattered(result.dx, ReduceOp::kSum, label);
      else
        head.tp_->all_reduce(result.dx, ReduceOp::kSum, label).wait();
    }
    return result;
  }

  static at::Tensor opened_gradient(Parameter* parameter) {
    if (parameter == nullptr || !parameter->is_trainable()) return {};
    const Parameter::GradTarget target = parameter->open_grad();
    if (!target.accumulate) target.buffer.zero_();
    return target.buffer;
  }

  // Buffers; undefined: frozen, or not there.
  struct Gradients {
    at::Tensor weight, bias, up;
  };

  // Also for capped, biased or adapted logits on one rank.
  static Result vocabulary_parallel(LmHead& head, const at::Tensor& x, const at::Tensor& labels,
                                    const at::Tensor& row_scale, bool with_grad, const Gradients& into) {
    Group& tp = *head.tp_;
    const HeadAdapter* adapter = head.adapter_.get();
    const Operand w{head.weight_->data()};
    const std::string& label = head.weight_->name();
    Result result{at::empty(labels.sizes(), row_scale.options()), with_grad ? at::empty_like(x) : at::Tensor()};
    const int64_t most_rows = head.rows_at_a_time(x);
    for (int64_t begin = 0; begin < x.size(0); begin += most_rows) {
      const int64_t rows = std::min(most_rows, x.size(0) - begin);
      const auto chunk = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, rows); };
      const at::Tensor rows_x = chunk(x);
      const at::Tensor logits = head.logits_of(rows_x, w.values.size(0));
      const ops::SoftmaxStatistics local =
          ops::softmax_statistics(logits, chunk(labels), head.local_start_, head.local_valid_, head.recipe_->kernels());
      const at::Tensor row_max = local.row_max.clone();
      tp.all_reduce(row_max, ReduceOp::kMax, label).wait();
      // A rank of only padding: exp(-inf - maximum) is 0.
      const at::Tensor sums = at::stack({local.sum_exp * (local.row_max - row_max).exp(), local.target_logit});
      tp.all_reduce(sums, ReduceOp::kSum, label).wait();
      const at::Tensor lse = row_max + sums[0].log();
      chunk(result.losses).copy_((lse - sums[1]).masked_fill(chunk(row_scale) == 0, 0));
      if (!with_grad) continue;
      // d tanh(x) = 1 - tanh(x)^2, before the gradient overwrites the logits.
      at::Tensor slope;
      if (head.softcap_ > 0) slope = 1 - (logits / head.softcap_).square_();
      ops::cross_entropy_gradient_(logits, lse, chunk(labels), chunk(row_scale), head.local_start_, head.local_valid_,
                                   head.recipe_->kernels());
      if (slope.defined()) logits.mul_(slope);
      const at::Tensor dx = chunk(result.dx);
      dx.narrow(1, 0, w.values.size(1)).copy_(head.recipe_->dgrad({logits}, w));
      if (adapter != nullptr) {
        const Operand up{adapter->up->data()};
        dx.narrow(1, adapter->hidden, up.values.size(1)).copy_(head.recipe_->dgrad({logits}, up));
        if (into.up.defined()) head.recipe_->wgrad_(into.up, {logits}, {adapter->low(rows_x)}, /*accumulate=*/true);
      }
      const Operand inputs{adapter == nullptr ? rows_x : adapter->inputs(rows_x)};
      if (into.weight.defined()) head.recipe_->wgrad_(into.weight, {logits}, inputs, /*accumulate=*/true);
      if (into.bias.defined()) head.recipe_->bias_grad_(into.bias, logits);
    }
    return result;
  }

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, const at::Tensor& x,
                                                const at::Tensor& /*weight*/, const std::optional<at::Tensor>& /*bias*/,
                                                LmHead* head, const at::Tensor& labels, const at::Tensor& loss_weights,
                                                const at::Tensor& per_weight) {
    for (Parameter* parameter : head->own_parameters()) expect_contribution(parameter);
    const Result result = compute(*head, x, labels, loss_weights * per_weight, true);
    // Complete already: another microbatch's loss may come before this one's backward.
    for (Parameter* parameter : head->own_parameters()) parameter->land_grad();
    node->save_for_backward({result.dx});
    hold(node, head);
    const at::Tensor sum = (result.losses * loss_weights).sum();
    node->mark_non_differentiable({result.losses, sum});
    return {sum * per_weight, result.losses, sum};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    // On a GPU it would synchronise.
    if (gradients[0].is_cpu()) {
      MEGALITH_CHECK(gradients[0].item<double>() == 1,
                     "the objective's gradient is {}; scale it through ObjectiveScales", gradients[0].item<double>());
    }
    LmHead& head = *held<LmHead*>(node);
    for (Parameter* parameter : head.own_parameters()) {
      if (parameter->is_trainable()) parameter->close_grad();
    }
    return {node->get_saved_variables()[0], {}, {}, {}, {}, {}, {}};
  }
};

LmHead::LmHead(const LayerContext& context, const VocabularyWeight& weight, double init_std, Parameter* tied,
               double softcap, const std::vector<std::string>& bias)
    : tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      recipe_(plain_recipe(context.kernels)),
      vocab_(weight.vocab),
      local_start_(weight.local_start(*tp_)),
      local_valid_(weight.local_valid_rows(*tp_)),
      softcap_(softcap),
      weight_(tied != nullptr
                  ? tied
                  : &register_parameter(
                        weight.name, weight.placement(*tp_),
                        {.dtype = context.dtype,
                         .device = context.device,
                         .init = Init::normal(init_std),
                         // The copy of a tied embedding at the other end of the pipeline stays an embedding.
                         .role = weight.pipeline_ranks.empty() ? ParameterRole::kHead : ParameterRole::kEmbedding,
                         .is_of_vocabulary = true})),
      is_tied_(tied != nullptr || !weight.pipeline_ranks.empty()) {
  if (!bias.empty()) add_bias(context, weight, bias);
  if (context.lora != nullptr && !is_tied_) add_adapter(context, weight);
}

LmHead::~LmHead() = default;

std::vector<Parameter*> LmHead::own_parameters() const {
  std::vector<Parameter*> own = {weight_};
  if (bias_ != nullptr) own.push_back(bias_);
  if (adapter_ != nullptr) own.push_back(adapter_->up);
  return own;
}

AdaptableLayer LmHead::adaptable() const {
  const Piece& piece = weight_->placement().pieces.at(0);
  return {.parts = {piece.name.substr(0, piece.name.rfind('.'))},
          .rows = {vocab_},
          .in_features = piece.shape[1],
          .is_head = true,
          .is_tied = is_tied_};
}

void LmHead::add_adapter(const LayerContext& context, const VocabularyWeight& weight) {
  const LoraOptions& options = *context.lora;
  const std::string name = weight.name.substr(0, weight.name.rfind('.'));
  if (!options.targets(name, /*is_head=*/true)) return;
  const int64_t rank = options.rank_of(name);
  LayerContext plain = context;
  plain.recipe = nullptr;
  plain.lora = nullptr;
  adapter_ = std::make_unique<HeadAdapter>();
  adapter_->hidden = weight.hidden;
  adapter_->scale = options.scale_of(name);
  adapter_->dropout = options.dropout;
  adapter_->drops_input = options.dropout_position == AdapterDropout::kPre;
  adapter_->dropout_key = make_philox_key(context.seed, "dropout." + name + ".lora_A");
  adapter_->down = std::make_unique<Linear>(
      plain, name + ".lora_A", weight.hidden, rank,
      LinearOptions{.weight_init = adapter_init(options.a_start(), weight.hidden, options.dim, rank),
                    .is_adapter = true});
  register_module(*adapter_->down);
  VocabularyWeight up = weight;
  up.name = name + ".lora_B.weight";
  up.hidden = rank;
  up.aliases.clear();
  adapter_->up = &register_parameter(up.name, up.placement(*tp_),
                                     {.dtype = context.dtype,
                                      .device = context.device,
                                      .init = adapter_init(options.b_start(), options.dim, weight.vocab, rank),
                                      .role = ParameterRole::kMatrix,
                                      .is_adapter = true});
}

at::Tensor LmHead::widened(const at::Tensor& x, const at::Tensor& row_ids) const {
  if (adapter_ == nullptr) return x;
  const auto drop = [&](const at::Tensor& values) {
    if (adapter_->dropout == 0 || !row_ids.defined()) return values;
    const at::Tensor rows = row_ids.reshape({-1});
    const at::Tensor own = rows.size(0) == x.size(0) ? rows : rows.narrow(0, tp_->rank() * x.size(0), x.size(0));
    return dropped(values, own, 0, adapter_->dropout, adapter_->dropout_key, recipe_->kernels());
  };
  at::Tensor low = adapter_->down->forward(adapter_->drops_input ? drop(x) : x);
  if (adapter_->scale != 1) low = low.mul(adapter_->scale);
  return at::cat({x, low}, 1);
}

// Split like the weight's rows.
void LmHead::add_bias(const LayerContext& context, const VocabularyWeight& weight,
                      const std::vector<std::string>& names) {
  Placement placement{.local_shape = {weight.local_rows(*tp_)}};
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  placement.pieces.push_back({.name = names[0],
                              .shape = {vocab_},
                              .canonical = {{std::min(local_start_, vocab_)}, {local_valid_}},
                              .local = {{0}, {local_valid_}},
                              .aliases = {names.begin() + 1, names.end()}});
  bias_ = &register_parameter(names[0], std::move(placement),
                              {.dtype = context.dtype,
                               .device = context.device,
                               .init = Init::constant(0),
                               .decay_mult = 0,
                               .role = ParameterRole::kVector});
}

// CPUs and references use the fewest, on every machine.
int64_t LmHead::rows_at_a_time(const at::Tensor& x) {
  if (rows_at_a_time_ > 0) return rows_at_a_time_;
  rows_at_a_time_ = kFewestLossRows;
  if (x.is_cpu() || x.is_meta() || recipe_->kernels() == Kernels::kReference) return rows_at_a_time_;
  const MemoryStats memory = memory_stats(x.device());
  const int64_t row_bytes = weight_->data().size(0) * x.element_size();
  rows_at_a_time_ = loss_rows(row_bytes, memory.total_bytes - memory.allocated_bytes);
  if (tp_->size() > 1) {
    // Agreed once: ranks that cut differently would deadlock.
    const at::Tensor fewest = at::full({}, rows_at_a_time_, x.options().dtype(at::kLong));
    tp_->all_reduce(fewest, ReduceOp::kMin, "rows of logits").wait();
    rows_at_a_time_ = fewest.item<int64_t>();
  }
  return rows_at_a_time_;
}

LmHead::Loss LmHead::loss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& loss_weights,
                          const ObjectiveScales& scales) {
  const at::Tensor weights = loss_weights.to(weight_->wide_dtype());
  const at::Tensor per_weight =
      scales.per_weight.defined() ? scales.per_weight.to(weights.scalar_type()) : at::ones({}, weights.scalar_type());
  Loss result;
  std::optional<at::Tensor> bias;
  if (bias_ != nullptr) bias = bias_->value();
  if (is_recording({x, weight_->value(), bias.value_or(at::Tensor())})) {
    auto outputs = LmLossFunction::apply(x, weight_->value(), bias, this, labels, weights, per_weight);
    result.term.objective = outputs[0];
    result.token_losses = outputs[1];
    result.term.sum = outputs[2];
  } else {
    result.token_losses = LmLossFunction::compute(*this, x, labels, weights, false).losses;
    result.term.sum = (result.token_losses * weights).sum();
    result.term.objective = result.term.sum * per_weight;
  }
  result.term.weight = weights.sum();
  return result;
}

at::Tensor LmHead::logits_of(const at::Tensor& x, int64_t num_rows) const {
  const auto first_rows = [&](const Parameter& parameter) { return parameter.data().narrow(0, 0, num_rows); };
  const at::Tensor bias = bias_ == nullptr ? at::Tensor() : first_rows(*bias_);
  at::Tensor logits = recipe_->forward({adapter_ == nullptr ? x : adapter_->inputs(x)}, {first_rows(*weight_)}, bias);
  if (adapter_ != nullptr) logits.add_(recipe_->forward({adapter_->low(x)}, {first_rows(*adapter_->up)}, {}));
  if (softcap_ > 0) logits.div_(softcap_).tanh_().mul_(softcap_);
  return logits;
}

at::Tensor LmHead::logits(const at::Tensor& x, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  at::Tensor chosen = is_sequence_parallel_ ? tp_->gathered(x, weight_->name()) : x;
  if (rows.defined() && chosen.is_meta()) {
    chosen = chosen.narrow(0, 0, rows.size(0));  // no index_select for meta tensors
  } else if (rows.defined()) {
    chosen = chosen.index_select(0, rows);
  }
  if (tp_->size() == 1) return logits_of(chosen, vocab_);
  const at::Tensor local = logits_of(chosen, weight_->data().size(0));
  const at::Tensor all = tp_->gathered(local, weight_->name());
  return all.view({tp_->size(), local.size(0), local.size(1)})
      .transpose(0, 1)
      .reshape({local.size(0), -1})
      .narrow(1, 0, vocab_);
}

double LmHead::own_forward_flops(const CostShape& shape) const {
  const double up = adapter_ == nullptr ? 0 : flops_of(*adapter_->up, shape);
  return flops_of(*weight_, shape) + up;
}

double LmHead::own_frozen_flops(const CostShape& shape) const {
  return weight_->is_trainable() ? 0 : flops_of(*weight_, shape);
}

double LmHead::flops_of(const Parameter& parameter, const CostShape& shape) {
  const auto& local = parameter.placement().local_shape;
  return 2 * static_cast<double>(shape.b * shape.s) * static_cast<double>(local[0] * local[1]);
}

}  // namespace megalith
