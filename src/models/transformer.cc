#include "models/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "comm/groups.h"
#include "models/lm_output.h"
#include "models/model_head.h"
#include "models/prediction_module.h"
#include "nn/bert_head.h"
#include "nn/lm_head.h"

namespace megalith {

namespace {

void make_text_states(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                      const LayerContext& context, bool has_pooler) {
  Norm* norm = add_final_norm(unit, config, names, context);
  BertPooler* pooler = has_pooler ? &unit.add<BertPooler>(context, config, names.bert_head.pooler) : nullptr;
  const bool is_split = context.is_sequence_parallel && context.groups->tp->size() > 1;
  unit.forward = [norm, pooler, is_split](Streams in, const UnitPass& pass) -> Streams {
    MEGALITH_CHECK(!is_split, "states of tokens that several ranks share");
    const at::Tensor states = normed_end(norm, std::move(in[0]));
    if (pooler == nullptr) return {{states, {}}};
    const ForwardContext& context = pass.context;
    const at::Tensor first = states.view({context.b, context.s, -1}).select(1, 0).contiguous();
    return {{states, {}}, {pooler->forward(first), {}}};
  };
}

struct TextHead {
  const ModelConfig& config;
  Group& cp;
  Norm* norm;
  BertHead* bert = nullptr;  // null in a decoder
  std::vector<PredictionModule*> predictions = {};
  VocabParallelEmbedding* embedding = nullptr;  // prediction modules'
  LmHead* lm = nullptr;

  Streams operator()(Streams in, const UnitPass& pass) const {
    const ModelInput& input = *pass.input;
    const at::Tensor hidden = normed_end(norm, std::move(in[0]));
    const at::Tensor read = bert != nullptr ? bert->transformed(hidden) : hidden;
    if (pass.head == HeadOutput::kLoss && input.preference) {
      add_preference_loss(input, read, *pass.output);
      return {};
    }
    *pass.output = lm_output(*lm, read, input, pass.head);
    if (pass.head == HeadOutput::kLoss && input.sets) {
      const at::Tensor weights = input.loss_weights.to(pass.output->token_losses.scalar_type());
      add_set_losses(input, (pass.output->token_losses * weights).sum(1), weights.sum(1), *pass.output);
    }
    const bool tells_sentences = bert != nullptr && bert->has_sentence_head();
    if (pass.head == HeadOutput::kLoss) {
      // Tasks without sentence labels have one term.
      if (tells_sentences && input.terms.size() >= 2) add_sentence_loss(input, hidden, *pass.output);
      predict_further(pass.as<TextPass>(), hidden);
    }
    if (pass.head == HeadOutput::kLogits && tells_sentences) {
      pass.output->sentence_logits = bert->sentence_logits(hidden, input.context).detach();
    }
    return {};
  }

 private:
  // Labels are the next tokens, so module 1 embeds the labels.
  void predict_further(const TextPass& pass, at::Tensor hidden) const {
    const ModelInput& input = *pass.input;
    if (predictions.empty() || config.mtp_loss_scaling_factor == 0) return;
    const double factor = config.mtp_loss_scaling_factor / static_cast<double>(predictions.size());
    const ObjectiveScales scales = input.scales(0).times(factor);
    at::Tensor labels = input.labels, weights = input.loss_weights;
    for (PredictionModule* module : predictions) {
      // Labels of weight 0 may be anything.
      const at::Tensor tokens = labels.clamp(0, *config.vocab_size - 1).reshape({-1});
      const LayerView view = pass.viewer->view(pass.sides[0].views, module->layer());
      hidden = module->forward(hidden, embedded(config, *embedding, tokens), view.context, view.angles);
      labels = rolled_left(labels, 0, pass.context, cp);
      weights = rolled_left(weights, 0, pass.context, cp);
      LmHead::Loss loss = lm->loss(lm->widened(hidden, pass.context.dropout_rows()), labels.reshape({-1}),
                                   weights.reshape({-1}), scales);
      loss.term.name = module->loss_name();
      pass.output->terms.push_back(std::move(loss.term));
    }
  }

  void add_sentence_loss(const ModelInput& input, const at::Tensor& hidden, ModelOutput& output) const {
    BertHead::SentenceLoss loss =
        bert->sentence_loss(hidden, input.more.at(input::kSentenceLabels.name), input.scales(1), input.context);
    loss.term.name = input.terms[1].name;
    const LossTerm accuracy{
        .name = kSentenceAccuracy, .sum = loss.num_right * 100, .weight = loss.term.weight, .objective = {}};
    output.terms.push_back(std::move(loss.term));
    output.terms.push_back(accuracy);
  }

  void add_preference_loss(const ModelInput& input, const at::Tensor& states, ModelOutput& output) const {
    const at::Tensor read = lm->widened(states, input.context.dropout_rows());
    const at::Tensor labels = input.labels.reshape({-1});
    PreferenceLoss preference;
    {
      const at::NoGradGuard no_grad;
      output.token_losses =
          lm->loss(read, labels, input.loss_weights.reshape({-1}), {}).token_losses.view(input.labels.sizes());
      const ForwardContext& context = input.context;
      preference = preference_loss(output.token_losses, input.loss_weights, context.mask.query_documents,
                                   std::max(context.row_length, context.s), *input.preference, cp);
    }
    const LmHead::Loss loss = lm->loss(read, labels, preference.token_weights.reshape({-1}), input.scales(0));
    MEGALITH_CHECK(preference.terms.size() == input.terms.size(), "{} names of {} terms", input.terms.size(),
                   preference.terms.size());
    for (size_t i = 0; i < input.terms.size(); ++i) preference.terms[i].name = input.terms[i].name;
    preference.terms[0].objective = loss.term.objective;  // the gradient is the loss's; the value is unused
    output.terms = std::move(preference.terms);
    if (input.sets) add_set_losses(input, preference.row_sums, preference.row_weights, output);
  }

  static void add_set_losses(const ModelInput& input, const at::Tensor& row_sums, const at::Tensor& row_weights,
                             ModelOutput& output) {
    for (LossTerm& term : set_losses(row_sums, row_weights, *input.sets)) output.terms.push_back(std::move(term));
  }
};

// table: the embedding's, null if not on this rank. num_modules: prediction units before the head.
void make_text_head(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                    const LayerContext& context, const VocabularyWeights& weights, Parameter* table,
                    int64_t num_modules) {
  TextHead head{.config = config, .cp = *context.groups->cp, .norm = add_final_norm(unit, config, names, context)};
  if (config.model_type == ModelType::kBert) {
    head.bert = &unit.add<BertHead>(context, config, names.bert_head, config.bert_binary_head);
  }
  for (int64_t depth = 1; depth <= num_modules; ++depth) {
    auto& module = unit.add<PredictionModule>(context, config, names, depth);
    unit.add_router(module.layer(), module.router());
    head.predictions.push_back(&module);
  }
  if (!head.predictions.empty()) {
    head.embedding = &unit.add<VocabParallelEmbedding>(context, weights.table, embedding_std(config), table);
    table = &head.embedding->weight();
  }
  const bool is_tied = !config.untie_embeddings_and_output_weights;
  head.lm = &unit.add<LmHead>(context, weights.output, is_tied ? embedding_std(config) : config.init_method_std,
                              is_tied ? table : nullptr, config.final_logit_softcapping, names.head_bias);
  // Runs once more for each prediction module.
  unit.cost_shape = [head](const Module& part, CostShape shape) {
    if (&part == head.lm) shape.b *= 1 + std::ssize(head.predictions);
    return shape;
  };
  unit.forward = head;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, TransformerNames names, const LayerContext& context,
                         const ModelPart& part)
    : UnitChunk(config, context, part, /*is_text=*/true),
      names_(std::move(names)),
      viewer_(std::make_shared<LayerViewer>(config, context)) {
  make_units(context);
}

void Transformer::make_unit(const Unit& unit, const LayerContext& context, int64_t /*layer*/) {
  if (unit.kind == kEmbeddingUnit) {
    make_token_embedding(add_block(unit, "embedding"), config(), names_, context, part());
  } else if (unit.kind == kLayerUnit) {
    const LayerContext own = layer_context(context, unit.number, config().num_layers);
    make_text_layer(add_layer(unit), config(), names_, own, unit.number);
  } else if (const ModelHead* other = find_head(config().model_type); other != nullptr && unit.kind == kHeadUnit) {
    other->make(add_block(unit, "head"), config(), names_, context);
  } else if (unit.kind == kHeadUnit) {
    const VocabularyWeights weights = vocabulary_weights(config(), names_, part(), context.groups->tp->size());
    Parameter* table = find_parameter(weights.table.name);
    const int64_t num_modules = count_units(part().own_units(), UnitLetter::kPrediction);
    make_text_head(add_block(unit, "head"), config(), names_, context, weights, table, num_modules);
  } else if (unit.kind == kStatesUnit || unit.kind == kPooledStatesUnit) {
    make_text_states(add_block(unit, "states"), config(), names_, context, unit.kind == kPooledStatesUnit);
  } else {
    MEGALITH_CHECK(unit.kind == kPredictionUnit, "a decoder has no unit of kind {}", unit.kind);
    // The head makes them, in its stage.
    MEGALITH_CHECK(part().is_last(), "prediction modules without a head");
  }
}

std::shared_ptr<UnitPass> Transformer::make_pass(const ModelInput& input, const ForwardContext& of_input) const {
  auto pass = std::make_shared<TextPass>();
  ForwardContext& context = pass->context = of_input;
  context.mask.is_causal = config().is_causal();
  context.mask.softcap = config().attn_logit_softcapping;
  if (context.b * context.s % token_split() != 0) {
    throw UserError(fmt::format("sequence_parallel splits {} tokens ({} sequences of {}) over {} ranks",
                                context.b * context.s, context.b, context.s, token_split()),
                    fmt::format("make micro_batch_size times seq_length a multiple of {}", token_split()));
  }
  pass->viewer = viewer_;
  pass->sides.push_back({.tokens = input.tokens,
                         .token_types = found(input, input::kTokenTypes),
                         .context = context,
                         .views = viewer_->views(context)});
  return pass;
}

int64_t Transformer::num_rows(const std::string& /*tensor*/, const ForwardContext& context) const {
  return div_exact(context.b * context.s, token_split());
}

std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context,
                                         const ModelPart& part) {
  return std::make_unique<Transformer>(config, TransformerNames{}, context, part);
}

}  // namespace megalith
