#include "nn/bert_head.h"

#include <ATen/ATen.h>

#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/picked_tokens.h"
#include "ops/arguments.h"

namespace megalith {

namespace {

constexpr int64_t kSentenceClasses = 2;

LayerContext with_plain_products(LayerContext context) {
  context.recipe = nullptr;
  return context;
}

LayerContext with_whole_tokens(LayerContext context) {
  context.is_sequence_parallel = false;
  return with_plain_products(std::move(context));
}

LinearOptions replicated(const LayerOptions& options) {
  return {.role = LinearRole::kReplicated, .has_bias = true, .init_std = options.init_method_std};
}

}  // namespace

BertPooler::BertPooler(const LayerContext& context, const LayerOptions& options, const std::string& name)
    : dense_(with_whole_tokens(context), name, options.hidden_size, options.hidden_size, replicated(options)) {
  register_module(dense_);
}

BertHead::BertHead(const LayerContext& context, const LayerOptions& options, const BertHeadNames& names,
                   bool has_sentence_head)
    : tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      begins_sequences_(context.groups->cp->rank() == 0),
      kernels_(context.kernels),
      // Megatron-LM's: erf even if bias_gelu_fusion gives MLPs tanh.
      activation_{.kind = options.openai_gelu ? ops::ActivationKind::kGeluTanh : ops::ActivationKind::kGelu,
                  .is_gated = false},
      transform_(with_plain_products(context), names.transform, options.hidden_size, options.hidden_size,
                 replicated(options)),
      transform_norm_(context, names.transform_norm, options.hidden_size, options) {
  register_module(transform_);
  register_module(transform_norm_);
  if (!has_sentence_head) return;
  pooler_ = std::make_unique<BertPooler>(context, options, names.pooler);
  register_module(*pooler_);
  sentence_ = std::make_unique<Linear>(with_whole_tokens(context), names.sentence, options.hidden_size,
                                       kSentenceClasses, replicated(options));
  register_module(*sentence_);
}

at::Tensor BertHead::transformed(const at::Tensor& x) {
  return transform_norm_.forward(activated(transform_.forward(x), activation_, kernels_));
}

at::Tensor BertHead::first_tokens(const at::Tensor& x, const ForwardContext& forward) const {
  if (!is_sequence_parallel_) return x.view({forward.b, forward.s, -1}).select(1, 0).contiguous();
  const at::Tensor index = at::arange(forward.b, x.options().dtype(at::kLong)) * forward.s;
  return picked_tokens(x, index, tp_);
}

at::Tensor BertHead::sentence_logits(const at::Tensor& x, const ForwardContext& forward) {
  MEGALITH_CHECK(has_sentence_head(), "this model has no classifier of sentences");
  return sentence_->forward(pooler_->forward(first_tokens(x, forward)));
}

BertHead::SentenceLoss BertHead::sentence_loss(const at::Tensor& x, const at::Tensor& labels,
                                               const ObjectiveScales& scales, const ForwardContext& forward) {
  const at::Tensor logits = sentence_logits(x, forward);
  const auto wide = ops::wide_dtype(logits.scalar_type());
  const at::Tensor of_sequences = labels.reshape({-1});
  MEGALITH_CHECK(of_sequences.size(0) == forward.b, "{} labels of {} sequences", of_sequences.size(0), forward.b);
  at::Tensor weights = of_sequences.ge(0).to(wide);
  if (!begins_sequences_) weights = at::zeros_like(weights);
  const at::Tensor log_probabilities = at::log_softmax(logits.to(wide), 1);
  const at::Tensor losses =
      log_probabilities.gather(1, of_sequences.clamp(0, kSentenceClasses - 1).unsqueeze(1)).squeeze(1).neg();
  const at::Tensor sum = (losses * weights).sum();
  const at::Tensor objective = scales.per_weight.defined() ? sum * scales.per_weight.to(sum.scalar_type()) : sum;
  const at::Tensor num_right = (logits.detach().argmax(1).eq(of_sequences).to(wide) * weights).sum();
  return {.term = {.name = {}, .sum = sum.detach(), .weight = weights.sum(), .objective = objective},
          .num_right = num_right};
}

// The classifier sees one token per sequence; its children were counted with all.
double BertHead::own_forward_flops(const CostShape& shape) const {
  if (!has_sentence_head()) return 0;
  const CostShape first{.b = shape.b, .s = 1};
  double excess = 0;
  for (const Module* part : std::initializer_list<const Module*>{pooler_.get(), sentence_.get()}) {
    excess += part->forward_flops(shape) - part->forward_flops(first);
  }
  return -excess;
}

}  // namespace megalith
