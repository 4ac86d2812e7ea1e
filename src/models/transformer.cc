#include "models/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "models/attention_chunks.h"
#include "models/expert_reports.h"
#include "models/lm_output.h"
#include "models/token_ids.h"
#include "nn/matmul_recipe.h"

namespace megalith {

namespace {

const ModelConfig& checked(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_config(config);
  if (!config.vocab_size) {
    errors.emplace_back("vocab_size is not set", "set vocab_size, or name a tokenizer whose vocabulary gives it");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

at::Tensor inverse_frequencies(const ModelConfig& config) {
  if (config.multi_latent_attention) {
    return rotary_inverse_frequencies(config.qk_pos_emb_head_dim, config.rotary_base, config);
  }
  return rotary_inverse_frequencies(config.rotated_channels(config.head_dim()), config);
}

// Layers with a window never see far enough for stretched wavelengths.
at::Tensor local_inverse_frequencies(const ModelConfig& config) {
  const RotaryOptions local = config.local(*config.rotary_base_local);
  return rotary_inverse_frequencies(config.rotated_channels(config.head_dim()), local);
}

// The embedding's table, and the head's weight: the same canonical tensor when they are tied.
struct VocabularyWeights {
  VocabularyWeight table, output;
};

VocabularyWeights vocabulary_weights(const ModelConfig& config, const TransformerNames& names, const ModelPart& part,
                                     int tp) {
  VocabularyWeight table{.name = names.embedding + ".weight",
                         .vocab = *config.vocab_size,
                         .padded_vocab = config.padded_vocab_size(tp),
                         .hidden = config.hidden_size};
  table.pipeline_ranks = part.holders(table.name);
  VocabularyWeight output = table;
  output.name = names.head + ".weight";
  output.pipeline_ranks.clear();
  // Published files repeat both tables in every prediction module.
  for (int64_t depth = 0; depth < config.num_prediction_modules(); ++depth) {
    const std::string module = fmt::format("{}.{}", names.layers, config.num_layers + depth);
    table.aliases.push_back(module + ".embed_tokens.weight");
    output.aliases.push_back(module + ".shared_head.head.weight");
  }
  if (config.untie_embeddings_and_output_weights) return {table, output};
  table.aliases.push_back(output.name);
  table.aliases.insert(table.aliases.end(), output.aliases.begin(), output.aliases.end());
  return {table, table};
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
                         const ModelPart& part)
    : Model(part),
      config_(checked(config)),
      dtype_(context.dtype),
      token_split_(context.is_sequence_parallel ? context.groups->tp->size() : 1),
      cp_(context.groups->cp),
      windowed_layers_(config.layers_with_window()),
      unrotated_layers_(config.layers_without_rotation()) {
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  std::vector<UserError> layout_errors = check_model_layout(config, {sizes.tp, sizes.ep, sizes.etp});
  if (!layout_errors.empty()) throw UserErrors(std::move(layout_errors));
  const at::Device buffer_device = context.buffer_device.value_or(context.device);
  if (config.position_embedding() == PositionEmbedding::kRope) {
    inverse_frequencies_ = inverse_frequencies(config).to(buffer_device);
    if (config.rotary_base_local) local_frequencies_ = local_inverse_frequencies(config).to(buffer_device);
    rotary_multiplier_ = config.multi_latent_attention ? rotary_multiplier(config) : config.rope_scaling_multiplier();
  }
  for (const Unit& unit : this->part().own_units()) make(unit, context, names);
  MEGALITH_CHECK(predictions_.empty() || head_, "prediction modules without a head");
}

void Transformer::make(const Unit& unit, const LayerContext& context, const TransformerNames& names) {
  if (unit.kind == kEmbeddingUnit) return make_embedding(context, names);
  if (unit.kind == kLayerUnit) return make_layer(unit, context, names);
  if (unit.kind == kHeadUnit) return make_head(context, names);
  if (unit.kind == kStatesUnit || unit.kind == kPooledStatesUnit) {
    return make_states(context, names, unit.kind == kPooledStatesUnit);
  }
  MEGALITH_CHECK(unit.kind == kPredictionUnit, "a decoder has no unit of kind {}", unit.kind);
  predictions_.push_back(std::make_unique<PredictionModule>(context, config_, names, unit.number + 1));
}

void Transformer::make_embedding(const LayerContext& context, const TransformerNames& names) {
  const VocabularyWeight table = vocabulary_weights(config_, names, part(), context.groups->tp->size()).table;
  embedding_ = std::make_unique<VocabParallelEmbedding>(context, table, embedding_std());
  register_module(*embedding_);
  Block block{.name = "embedding", .modules = {embedding_.get()}, .is_layer = false};
  if (config_.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    positions_ =
        std::make_unique<LearnedPositions>(context, names.positions + ".weight", config_.max_position_embeddings,
                                           config_.hidden_size, config_.init_method_std);
    register_module(*positions_);
    block.modules.push_back(positions_.get());
  }
  if (config_.token_types() > 0) {
    token_types_ = std::make_unique<TokenTypes>(context, names.token_types + ".weight", config_.token_types(),
                                                config_.hidden_size, config_.init_method_std);
    register_module(*token_types_);
    block.modules.push_back(token_types_.get());
  }
  if (config_.embedding_norm) {
    embedding_norm_ = std::make_unique<Norm>(context, names.embedding_norm, config_.hidden_size, config_);
    register_module(*embedding_norm_);
    block.modules.push_back(embedding_norm_.get());
  }
  embedding_dropout_.emplace(context, names.embedding, config_.hidden_dropout);
  add_block(std::move(block));
}

void Transformer::make_layer(const Unit& unit, const LayerContext& context, const TransformerNames& names) {
  MEGALITH_CHECK(part().layers_per_block > 0, "blocks of {} layers", part().layers_per_block);
  // Groups of layers go on through the parts of a chunk. One that a new part cuts short is recomputed as its whole
  // group is.
  const int64_t place = (part().layers_before + std::ssize(layers_)) % part().layers_per_block;
  if (place == 0 || layers_.empty()) {
    // What comes from the embedding or another stage is one tensor, and so is a normed sum.
    const bool adds_inputs = !layers_.empty() && !config_.norms_sums();
    add_block({.name = unit.name, .layer = part().layers_before + unit.number - place, .adds_inputs = adds_inputs});
  }
  LayerContext own = context;
  if (own.recipe != nullptr && own.recipe->leaves_plain(unit.number, config_.num_layers)) own.recipe = nullptr;
  layers_.push_back(std::make_unique<DecoderLayer>(own, unit.name, config_, decoder_site(config_, names, unit.number)));
  layer_numbers_.push_back(unit.number);
  register_module(*layers_.back());
  blocks_.back().modules.push_back(layers_.back().get());
}

void Transformer::make_final_norm(const LayerContext& context, const TransformerNames& names, Block& block) {
  if (config_.norms_sums()) return;
  final_norm_ = std::make_unique<Norm>(context, names.final_norm, config_.hidden_size, config_);
  register_module(*final_norm_);
  block.modules.push_back(final_norm_.get());
}

void Transformer::make_states(const LayerContext& context, const TransformerNames& names, bool has_pooler) {
  gives_states_ = true;
  Block block{.name = "states", .is_layer = false};
  make_final_norm(context, names, block);
  if (has_pooler) {
    pooler_ = std::make_unique<BertPooler>(context, config_, names.bert_head.pooler);
    register_module(*pooler_);
    block.modules.push_back(pooler_.get());
  }
  add_block(std::move(block));
}

// The units of prediction modules came before, and their parameters lie between the norm's and the head's.
void Transformer::make_head(const LayerContext& context, const TransformerNames& names) {
  const VocabularyWeights weights = vocabulary_weights(config_, names, part(), context.groups->tp->size());
  Block block{.name = "head", .is_layer = false};
  make_final_norm(context, names, block);
  if (config_.model_type == ModelType::kBert) {
    bert_head_ = std::make_unique<BertHead>(context, config_, names.bert_head, config_.bert_binary_head);
    register_module(*bert_head_);
    block.modules.push_back(bert_head_.get());
  }
  // The embedding's table, where this rank has it.
  Parameter* table = embedding_ ? &embedding_->weight() : part().find(weights.table.name);
  for (const auto& module : predictions_) register_module(*module);
  if (!predictions_.empty()) {
    prediction_embedding_ = embedding_.get();
    if (prediction_embedding_ == nullptr) {
      embedding_copy_ = std::make_unique<VocabParallelEmbedding>(context, weights.table, embedding_std(), table);
      register_module(*embedding_copy_);
      prediction_embedding_ = embedding_copy_.get();
    }
    table = &prediction_embedding_->weight();
  }
  head_ = std::make_unique<LmHead>(context, weights.output, is_tied() ? embedding_std() : config_.init_method_std,
                                   is_tied() ? table : nullptr, config_.final_logit_softcapping, names.head_bias);
  register_module(*head_);
  block.modules.push_back(head_.get());
  for (const auto& module : predictions_) block.modules.push_back(module.get());
  if (prediction_embedding_ != nullptr) block.modules.push_back(prediction_embedding_);
  add_block(std::move(block));
}

void Transformer::add_block(Block block) {
  block.index = part().blocks_before + std::ssize(blocks_);
  blocks_.push_back(std::move(block));
}

ModelOutput Transformer::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  ForwardContext context = input.context;
  context.mask.is_causal = config_.is_causal();
  context.mask.softcap = config_.attn_logit_softcapping;
  if (config_.has_experts()) context.expert_records = std::make_shared<ExpertRecords>();
  context.objective_scale = head == HeadOutput::kLoss ? input.per_microbatch : 0;
  if (context.b * context.s % token_split_ != 0) {
    throw UserError(fmt::format("sequence_parallel splits {} tokens ({} sequences of {}) over {} ranks",
                                context.b * context.s, context.b, context.s, token_split_),
                    fmt::format("make micro_batch_size times seq_length a multiple of {}", token_split_));
  }
  const LayerViews views =
      layer_views(context, inverse_frequencies_.defined() ? inverse_frequencies_.device() : at::kCPU);
  auto block = blocks_.begin();
  ResidualStream stream;
  if (embedding_) {
    stream.delta = run_block(runner(), *block++, {}, [&](const auto&) -> std::vector<at::Tensor> {
      return {embedding_dropout_->forward(embed(input, context), context)};
    })[0];
  } else {
    stream.delta = boundary.at("hidden");
  }
  for (auto layer = layers_.begin(); layer != layers_.end();) {
    std::vector<std::pair<DecoderLayer*, LayerView>> layers;
    for (size_t i = 0; i < block->modules.size(); ++i, ++layer) {
      layers.emplace_back(layer->get(), view_of(views, layer_numbers_[static_cast<size_t>(layer - layers_.begin())]));
    }
    // By value: a runner may call it again after this pass.
    const BlockBody body = [layers](const std::vector<at::Tensor>& inputs) {
      ResidualStream through{inputs[0], inputs[1]};
      for (const auto& [layer, view] : layers) through = layer->forward(std::move(through), view.context, view.angles);
      return std::vector<at::Tensor>{through.delta, through.residual};
    };
    const std::vector<at::Tensor> outputs = run_block(runner(), *block++, {stream.delta, stream.residual}, body);
    stream = {outputs[0], outputs[1]};
  }
  ModelOutput output;
  if (head_) {
    // The objectives are differentiable, what else the head tells is not.
    const std::vector<at::Tensor> objectives =
        run_block(runner(), *block, {stream.delta, stream.residual}, [&](const std::vector<at::Tensor>& inputs) {
          output = head_output(input, context, views, {inputs[0], inputs[1]}, head);
          std::vector<at::Tensor> terms;
          for (const LossTerm& term : output.terms) {
            if (term.objective.defined()) terms.push_back(term.objective);
          }
          return terms;
        });
    auto objective = objectives.begin();
    for (LossTerm& term : output.terms) {
      if (term.objective.defined()) term.objective = *objective++;
    }
  } else if (gives_states_) {
    output.boundary = states_of(context, std::move(stream));
  } else {
    Bundle given;
    given.set("hidden", stream.sum());
    output.boundary = outgoing_bundle(part().units, part().range, given, boundary);
  }
  if (context.expert_records) report_experts(config_, *cp_, *context.expert_records, head, output);
  return output;
}

Bundle Transformer::states_of(const ForwardContext& context, ResidualStream stream) const {
  MEGALITH_CHECK(token_split_ == 1, "states of tokens that {} ranks share", token_split_);
  const at::Tensor states = final_norm_ ? final_norm_->forward(stream) : stream.sum();
  Bundle given;
  if (pooler_) given.set("pooled", pooler_->forward(states.view({context.b, context.s, -1}).select(1, 0).contiguous()));
  given.set("states", states);
  return given;
}

std::vector<std::string> Transformer::added_losses() const {
  std::vector<std::string> names = expert_loss_names(config_);
  for (int64_t depth = 1; depth <= config_.num_prediction_modules(); ++depth) {
    names.push_back(fmt::format("mtp_{} loss", depth));
  }
  return names;
}

std::vector<ObservationSpec> Transformer::observations() const {
  return expert_observations(config_, config_.num_layers + config_.num_prediction_modules());
}

void Transformer::after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) {
  move_expert_biases(config_, routers(), observed, is_made);
}

std::map<int64_t, ExpertRouter*> Transformer::routers() {
  std::map<int64_t, ExpertRouter*> all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i]->router() != nullptr) all[layer_numbers_[i]] = layers_[i]->router();
  }
  for (const auto& module : predictions_) {
    if (module->router() != nullptr) all[module->layer()] = module->router();
  }
  return all;
}

// The head runs once more for every prediction module.
double Transformer::own_forward_flops(const CostShape& shape) const {
  if (predictions_.empty()) return 0;
  return static_cast<double>(predictions_.size()) * head_->forward_flops(shape);
}

double Transformer::own_frozen_flops(const CostShape& shape) const {
  if (predictions_.empty()) return 0;
  return static_cast<double>(predictions_.size()) * head_->frozen_flops(shape);
}

std::vector<TensorSpec> Transformer::boundary(const ForwardContext& context) const {
  const int64_t tokens = div_exact(context.b * context.s, token_split_);
  std::vector<TensorSpec> tensors;
  for (std::string& name : boundary_before(part().units, part().range.first)) {
    tensors.push_back({std::move(name), {tokens, config_.hidden_size}, dtype_});
  }
  return tensors;
}

at::Tensor Transformer::embed(const ModelInput& input, const ForwardContext& context) const {
  const at::Tensor tokens = input.tokens.reshape({-1});
  MEGALITH_CHECK(tokens.size(0) == context.b * context.s, "{} tokens, but b {} and s {}", tokens.size(0), context.b,
                 context.s);
  check_token_ids(tokens, *config_.vocab_size);
  at::Tensor x = embedded(*embedding_, tokens);
  if (positions_) x = x + positions_->forward(context);
  if (token_types_) {
    const at::Tensor* types = input.more.find("token_types");
    x = x + token_types_->forward(types == nullptr ? at::Tensor() : *types, context);
  }
  return embedding_norm_ ? embedding_norm_->forward(x) : x;
}

at::Tensor Transformer::embedded(VocabParallelEmbedding& table, const at::Tensor& tokens) const {
  const at::Tensor x = table.forward(tokens);
  if (!config_.scale_embeddings) return x;
  // As transformers has it: in bf16 the root of 2304, 48, is exact, and that of 3584 is 59.75.
  const double root = std::sqrt(static_cast<double>(config_.hidden_size));
  return x * at::scalar_tensor(root, dtype_).item<double>();
}

at::Tensor Transformer::positions(const ForwardContext& forward) const {
  if (forward.position_ids.defined()) return forward.position_ids;
  const int64_t first = forward.cache == nullptr ? 0 : forward.cache->length;
  return at::arange(first, first + forward.s, inverse_frequencies_.options().dtype(at::kLong)).unsqueeze(0);
}

// Source: Nakanishi 2025, arXiv:2501.19399, as Llama 4 has it.
at::Tensor Transformer::query_scale(const ForwardContext& forward) const {
  if (config_.attn_temperature_scale == 0) return {};
  const auto wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor floors = (positions(forward) + 1).div(config_.attn_temperature_floor, "floor").to(wide);
  return floors.log1p_().mul_(config_.attn_temperature_scale).add_(1);
}

RotaryAngles Transformer::rotary_angles(const ForwardContext& forward, const at::Tensor& inverse_frequencies,
                                        double multiplier) const {
  if (!inverse_frequencies.defined()) return {};
  return compute_rotary_angles(positions(forward), inverse_frequencies, dtype_, multiplier);
}

Transformer::LayerViews Transformer::layer_views(const ForwardContext& context, at::Device device) const {
  LayerViews views;
  views.whole = {context, rotary_angles(context, inverse_frequencies_, rotary_multiplier_)};
  views.windowed = views.whole;
  views.windowed.context.mask.window = config_.attention_window();
  if (local_frequencies_.defined()) views.windowed.angles = rotary_angles(context, local_frequencies_, 1);
  if (config_.attention_chunk_size > 0) views.chunked = cut_into_chunks(context, config_.attention_chunk_size, device);
  views.query_scale = query_scale(context);
  return views;
}

Transformer::LayerView Transformer::view_of(const LayerViews& views, int64_t layer) const {
  // Those of prediction modules are as the last.
  const auto place = static_cast<size_t>(std::min(layer, config_.num_layers - 1));
  LayerView view = windowed_layers_[place] == 1 ? views.windowed : views.whole;
  if (unrotated_layers_[place] == 1) {
    view.angles = {.cos = {}, .sin = {}, .query_scale = views.query_scale};
  } else if (views.chunked) {
    const int64_t window = view.context.mask.window;
    view.context.mask = *views.chunked;
    view.context.mask.window = window;
  }
  return view;
}

// Labels are the next tokens, so those of the module of depth 1 begin with the labels themselves.
void Transformer::predict_further(const ModelInput& input, const ForwardContext& context, const LayerViews& views,
                                  at::Tensor hidden, ModelOutput& output) const {
  const double factor = config_.mtp_loss_scaling_factor / static_cast<double>(config_.num_prediction_modules());
  if (factor == 0) return;
  const ObjectiveScales scales = input.scales(0).times(factor);
  at::Tensor labels = input.labels, weights = input.loss_weights;
  for (const auto& module : predictions_) {
    // Labels without weight may be anything.
    const at::Tensor tokens = labels.clamp(0, *config_.vocab_size - 1).reshape({-1});
    const LayerView view = view_of(views, module->layer());
    hidden = module->forward(hidden, embedded(*prediction_embedding_, tokens), view.context, view.angles);
    labels = rolled_left(labels, 0, context, *cp_);
    weights = rolled_left(weights, 0, context, *cp_);
    LmHead::Loss loss = head_->loss(hidden, labels.reshape({-1}), weights.reshape({-1}), scales);
    loss.term.name = module->loss_name();
    output.terms.push_back(std::move(loss.term));
  }
}

// A task without such labels names one term.
void Transformer::add_sentence_loss(const ModelInput& input, const at::Tensor& hidden, ModelOutput& output) const {
  if (!bert_head_ || !bert_head_->has_sentence_head() || input.terms.size() < 2) return;
  BertHead::SentenceLoss loss =
      bert_head_->sentence_loss(hidden, input.more.at("sentence_labels"), input.scales(1), input.context);
  loss.term.name = input.terms[1].name;
  const LossTerm accuracy{
      .name = kSentenceAccuracy, .sum = loss.num_right * 100, .weight = loss.term.weight, .objective = {}};
  output.terms.push_back(std::move(loss.term));
  output.terms.push_back(accuracy);
}

void Transformer::add_preference_loss(const ModelInput& input, const at::Tensor& read, ModelOutput& output) const {
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

ModelOutput Transformer::head_output(const ModelInput& input, const ForwardContext& context, const LayerViews& views,
                                     ResidualStream stream, HeadOutput head) const {
  const at::Tensor hidden = final_norm_ ? final_norm_->forward(stream) : stream.sum();
  const at::Tensor read = bert_head_ ? bert_head_->transformed(hidden) : hidden;  // by the head
  if (head == HeadOutput::kLoss && input.preference) {
    ModelOutput output;
    add_preference_loss(input, read, output);
    return output;
  }
  ModelOutput output = lm_output(*head_, read, input, head);
  if (head == HeadOutput::kLoss) {
    add_sentence_loss(input, hidden, output);
    predict_further(input, context, views, hidden, output);
  }
  if (head == HeadOutput::kLogits && bert_head_ && bert_head_->has_sentence_head()) {
    output.sentence_logits = bert_head_->sentence_logits(hidden, input.context).detach();
  }
  return output;
}

std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context,
                                         const ModelPart& part) {
  return std::make_unique<Transformer>(config, TransformerNames{}, context, part);
}

}  // namespace megalith
