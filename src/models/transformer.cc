// See transformer.h.
#include "models/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "comm/groups.h"
#include "models/lm_output.h"
#include "nn/bert_head.h"
#include "nn/lm_head.h"

namespace megalith {

namespace {

// The end of a stage that gives states instead of predicting.
class TextStates : public UnitModule {
 public:
  TextStates(const ModelConfig& config, const TransformerNames& names, const LayerContext& context, bool has_pooler)
      : is_split_(context.is_sequence_parallel && context.groups->tp->size() > 1) {
    if (!config.norms_sums()) {
      register_module(norm_.emplace(context, names.final_norm, config.hidden_size, config));
    }
    if (has_pooler) register_module(pooler_.emplace(context, config, names.bert_head.pooler));
  }

  Streams forward(Streams in, const UnitPass& pass) override {
    MEGALITH_CHECK(!is_split_, "states of tokens that several ranks share");
    const at::Tensor states = norm_ ? norm_->forward(in[0]) : in[0].sum();
    Streams given = {{.delta = states, .residual = {}}};
    if (pooler_) {
      const ForwardContext& context = pass.context;
      const at::Tensor first = states.view({context.b, context.s, -1}).select(1, 0).contiguous();
      given.push_back({.delta = pooler_->forward(first), .residual = {}});
    }
    return given;
  }

 private:
  bool is_split_;
  std::optional<Norm> norm_;  // none where the layers norm their sums
  std::optional<BertPooler> pooler_;
};

class TextHead : public UnitModule {
 public:
  // table: the embedding's, where this rank has it; null: it does not.
  TextHead(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
           const VocabularyWeights& weights, Parameter* table,
           std::vector<std::unique_ptr<PredictionModule>> predictions)
      : config_(config), cp_(context.groups->cp), predictions_(std::move(predictions)) {
    if (!config.norms_sums()) {
      register_module(norm_.emplace(context, names.final_norm, config.hidden_size, config));
    }
    if (config.model_type == ModelType::kBert) {
      register_module(bert_.emplace(context, config, names.bert_head, config.bert_binary_head));
    }
    for (const auto& module : predictions_) register_module(*module);
    if (!predictions_.empty()) {
      register_module(embedding_.emplace(context, weights.table, embedding_std(config), table));
      table = &embedding_->weight();
    }
    const bool is_tied = !config.untie_embeddings_and_output_weights;
    head_ = std::make_unique<LmHead>(context, weights.output, is_tied ? embedding_std(config) : config.init_method_std,
                                     is_tied ? table : nullptr, config.final_logit_softcapping, names.head_bias);
    register_module(*head_);
  }

  Streams forward(Streams in, const UnitPass& pass) override {
    const ModelInput& input = *pass.input;
    const at::Tensor hidden = norm_ ? norm_->forward(in[0]) : in[0].sum();
    const at::Tensor read = bert_ ? bert_->transformed(hidden) : hidden;
    if (pass.head == HeadOutput::kLoss && input.preference) {
      add_preference_loss(input, read, *pass.output);
      return {};
    }
    *pass.output = lm_output(*head_, read, input, pass.head);
    const bool tells_sentences = bert_ && bert_->has_sentence_head();
    if (pass.head == HeadOutput::kLoss) {
      // A task without labels of sentences names one term.
      if (tells_sentences && input.terms.size() >= 2) add_sentence_loss(input, hidden, *pass.output);
      predict_further(pass.as<TextPass>(), hidden);
    }
    if (pass.head == HeadOutput::kLogits && tells_sentences) {
      pass.output->sentence_logits = bert_->sentence_logits(hidden, input.context).detach();
    }
    return {};
  }

  void add_routers(std::map<int64_t, ExpertRouter*>& routers) override {
    for (const auto& module : predictions_) {
      if (module->router() != nullptr) routers[module->layer()] = module->router();
    }
  }

 protected:
  // The head runs once more for every prediction module.
  double own_forward_flops(const CostShape& shape) const override {
    return static_cast<double>(predictions_.size()) * head_->forward_flops(shape);
  }
  double own_frozen_flops(const CostShape& shape) const override {
    return static_cast<double>(predictions_.size()) * head_->frozen_flops(shape);
  }

 private:
  // Labels are the next tokens, so those of the module of depth 1 begin with the labels themselves.
  void predict_further(const TextPass& pass, at::Tensor hidden) {
    const ModelInput& input = *pass.input;
    if (predictions_.empty() || config_.mtp_loss_scaling_factor == 0) return;
    const double factor = config_.mtp_loss_scaling_factor / static_cast<double>(config_.num_prediction_modules());
    const ObjectiveScales scales = input.scales(0).times(factor);
    at::Tensor labels = input.labels, weights = input.loss_weights;
    for (const auto& module : predictions_) {
      // Labels without weight may be anything.
      const at::Tensor tokens = labels.clamp(0, *config_.vocab_size - 1).reshape({-1});
      const LayerView view = pass.viewer->view(pass.sides[0].views, module->layer());
      hidden = module->forward(hidden, embedded(config_, *embedding_, tokens), view.context, view.angles);
      labels = rolled_left(labels, 0, pass.context, *cp_);
      weights = rolled_left(weights, 0, pass.context, *cp_);
      LmHead::Loss loss = head_->loss(hidden, labels.reshape({-1}), weights.reshape({-1}), scales);
      loss.term.name = module->loss_name();
      pass.output->terms.push_back(std::move(loss.term));
    }
  }

  void add_sentence_loss(const ModelInput& input, const at::Tensor& hidden, ModelOutput& output) {
    BertHead::SentenceLoss loss =
        bert_->sentence_loss(hidden, input.more.at("sentence_labels"), input.scales(1), input.context);
    loss.term.name = input.terms[1].name;
    const LossTerm accuracy{
        .name = kSentenceAccuracy, .sum = loss.num_right * 100, .weight = loss.term.weight, .objective = {}};
    output.terms.push_back(std::move(loss.term));
    output.terms.push_back(accuracy);
  }

  void add_preference_loss(const ModelInput& input, const at::Tensor& read, ModelOutput& output) {
    const at::Tensor labels = input.labels.reshape({-1});
    PreferenceLoss preference;
    {
      const at::NoGradGuard no_grad;
      output.token_losses =
          head_->loss(read, labels, input.loss_weights.reshape({-1}), {}).token_losses.view(input.labels.sizes());
      const ForwardContext& context = input.context;
      preference = preference_loss(output.token_losses, input.loss_weights, context.mask.query_documents,
                                   std::max(context.row_length, context.s), *input.preference, *cp_);
    }
    const LmHead::Loss loss = head_->loss(read, labels, preference.token_weights.reshape({-1}), input.scales(0));
    MEGALITH_CHECK(preference.terms.size() == input.terms.size(), "{} names of {} terms", input.terms.size(),
                   preference.terms.size());
    for (size_t i = 0; i < input.terms.size(); ++i) preference.terms[i].name = input.terms[i].name;
    preference.terms[0].objective = loss.term.objective;  // its gradient is the loss's; its value is nobody's
    output.terms = std::move(preference.terms);
  }

  ModelConfig config_;
  std::shared_ptr<Group> cp_;
  std::optional<Norm> norm_;      // none where the layers norm their sums
  std::optional<BertHead> bert_;  // none in a decoder
  std::vector<std::unique_ptr<PredictionModule>> predictions_;
  std::optional<VocabParallelEmbedding> embedding_;  // what they embed with
  std::unique_ptr<LmHead> head_;
};

}  // namespace

Transformer::Transformer(const ModelConfig& config, TransformerNames names, const LayerContext& context,
                         const ModelPart& part)
    : UnitChunk(config, context, part, /*is_text=*/true),
      names_(std::move(names)),
      viewer_(std::make_shared<LayerViewer>(config, context)) {
  make_units(context);
  MEGALITH_CHECK(predictions_.empty(), "prediction modules without a head");
}

std::vector<UnitChunk::Step> Transformer::make_steps(const Unit& unit, const LayerContext& context, int64_t /*layer*/) {
  std::vector<Step> steps;
  if (unit.kind == kEmbeddingUnit) {
    steps.push_back(block_step(unit, make_token_embedding(config(), names_, context, part()), "embedding"));
  } else if (unit.kind == kLayerUnit) {
    const LayerContext own = layer_context(context, unit.number, config().num_layers);
    steps.push_back(layer_step(unit, make_text_layer(config(), names_, own, unit)));
    // What comes from the embedding or another stage is one tensor, and so is a normed sum.
    steps.back().adds_inputs = !config().norms_sums();
  } else if (unit.kind == kPredictionUnit) {
    predictions_.push_back(std::make_unique<PredictionModule>(context, config(), names_, unit.number + 1));
  } else if (unit.kind == kHeadUnit) {
    const VocabularyWeights weights = vocabulary_weights(config(), names_, part(), context.groups->tp->size());
    steps.push_back(block_step(unit,
                               std::make_unique<TextHead>(config(), names_, context, weights,
                                                          find_parameter(weights.table.name), std::move(predictions_)),
                               "head"));
    predictions_.clear();
  } else {
    MEGALITH_CHECK(unit.kind == kStatesUnit || unit.kind == kPooledStatesUnit, "a decoder has no unit of kind {}",
                   unit.kind);
    const bool has_pooler = unit.kind == kPooledStatesUnit;
    steps.push_back(block_step(unit, std::make_unique<TextStates>(config(), names_, context, has_pooler), "states"));
  }
  return steps;
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
  const at::Tensor* types = input.more.find("token_types");
  pass->viewer = viewer_;
  pass->sides.push_back({.tokens = input.tokens,
                         .token_types = types == nullptr ? at::Tensor() : *types,
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
