// See encoder_decoder.h.
#include "models/encoder_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "models/expert_reports.h"
#include "models/lm_output.h"
#include "models/token_ids.h"
#include "nn/matmul_recipe.h"

namespace megalith {

namespace {

const ModelConfig& checked_encoder_decoder(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_config(config);
  if (!config.vocab_size) {
    errors.emplace_back("vocab_size is not set", "set vocab_size, or name a tokenizer whose vocabulary gives it");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

std::string first_layer_name(const std::string& layers) { return layers + ".0"; }

}  // namespace

std::vector<Unit> encoder_decoder_units(const ModelConfig& config) {
  const EncoderDecoderNames names;
  const std::vector<std::string> hidden = {"hidden"}, both = {"hidden", "memory"};
  const UsedParameter table{.unit = names.embedding, .parameter = names.embedding + ".weight"};
  const bool is_relative = config.position_embedding() == PositionEmbedding::kRelative;
  std::vector<Unit> units;
  const auto add_layers = [&](const char* kind, const std::string& layers, int64_t count,
                              const std::vector<std::string>& reads) {
    const UsedParameter bias{.unit = first_layer_name(layers),
                             .parameter = first_layer_name(layers) + "." + names.relative_bias};
    for (int64_t layer = 0; layer < count; ++layer) {
      units.push_back({.kind = kind,
                       .name = fmt::format("{}.{}", layers, layer),
                       .number = layer,
                       .letter = UnitLetter::kLayer,
                       .layers_worth = 1,
                       .reads = reads,
                       .gives = hidden});
      if (is_relative && layer > 0) units.back().uses = {bias};
    }
  };
  units.push_back(
      {.kind = kEncoderEmbeddingUnit, .name = names.embedding, .letter = UnitLetter::kEmbedding, .gives = hidden});
  add_layers(kEncoderLayerUnit, names.encoder_layers, config.num_layers, hidden);
  units.back().stays_with_next = true;
  units.push_back({.kind = kEncoderNormUnit, .name = names.encoder_norm, .reads = hidden, .gives = {"memory"}});
  units.push_back(
      {.kind = kDecoderEmbeddingUnit, .name = names.embedding_aliases.back(), .gives = hidden, .uses = {table}});
  if (config.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    units.back().uses.push_back({.unit = names.embedding, .parameter = names.positions + ".weight"});
  }
  add_layers(kDecoderLayerUnit, names.decoder_layers, config.num_decoder_layers(), both);
  units.push_back({.kind = kDecoderHeadUnit, .name = names.head, .letter = UnitLetter::kHead, .reads = hidden});
  if (!config.untie_embeddings_and_output_weights) units.back().uses = {table};
  return units;
}

EncoderDecoder::EncoderDecoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
    : Model(part),
      config_(checked_encoder_decoder(config)),
      dtype_(context.dtype),
      token_split_(context.is_sequence_parallel ? context.groups->tp->size() : 1),
      cp_(context.groups->cp) {
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  std::vector<UserError> layout_errors = check_model_layout(config, {sizes.tp, sizes.ep, sizes.etp});
  if (context.groups->cp->size() > 1) {
    layout_errors.emplace_back(
        fmt::format("context_parallel_size is {}, and model_type t5 has two sequences, which would both have to be cut",
                    context.groups->cp->size()),
        "set context_parallel_size to 1; tensor, pipeline and data parallelism take model_type t5");
  }
  if (!layout_errors.empty()) throw UserErrors(std::move(layout_errors));
  for (const Unit& unit : this->part().own_units()) make(unit, context);
}

// ---- Making ----

void EncoderDecoder::make(const Unit& unit, const LayerContext& context) {
  if (unit.kind == kEncoderEmbeddingUnit) {
    return make_embedding(context, encoder_embedding_, kEncoderEmbeddingUnit);
  }
  if (unit.kind == kEncoderLayerUnit) return make_encoder_layer(unit, context);
  if (unit.kind == kEncoderNormUnit) return make_encoder_norm(context);
  if (unit.kind == kDecoderEmbeddingUnit) {
    return make_embedding(context, decoder_embedding_, kDecoderEmbeddingUnit);
  }
  if (unit.kind == kDecoderLayerUnit) return make_decoder_layer(unit, context);
  MEGALITH_CHECK(unit.kind == kDecoderHeadUnit, "an encoder and decoder has no unit of kind {}", unit.kind);
  make_head(context);
}

VocabularyWeight EncoderDecoder::table_weight(int tp) const {
  VocabularyWeight weight{.name = names_.embedding + ".weight",
                          .vocab = *config_.vocab_size,
                          .padded_vocab = config_.padded_vocab_size(tp),
                          .hidden = config_.hidden_size};
  weight.pipeline_ranks = part().holders(weight.name);
  for (const std::string& alias : names_.embedding_aliases) weight.aliases.push_back(alias + ".weight");
  if (is_tied()) weight.aliases.push_back(names_.head + ".weight");
  return weight;
}

// Null where this rank has no copy yet.
Parameter* EncoderDecoder::table() const {
  for (const Embedding* embedding : {&encoder_embedding_, &decoder_embedding_}) {
    if (embedding->tokens) return &embedding->tokens->weight();
  }
  return part().find(names_.embedding + ".weight");
}

Parameter* EncoderDecoder::position_table() const {
  for (const Embedding* embedding : {&encoder_embedding_, &decoder_embedding_}) {
    if (embedding->positions) return &embedding->positions->weight();
  }
  return part().find(names_.positions + ".weight");
}

void EncoderDecoder::make_embedding(const LayerContext& context, Embedding& embedding, const std::string& name) {
  embedding.tokens = std::make_unique<VocabParallelEmbedding>(context, table_weight(context.groups->tp->size()),
                                                              embedding_std(), table());
  register_module(*embedding.tokens);
  Block block{.name = name, .modules = {embedding.tokens.get()}, .is_layer = false};
  if (config_.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    const std::string table = names_.positions + ".weight";
    const SharedRows shared{.pipeline_ranks = part().holders(table), .tied = position_table()};
    embedding.positions = std::make_unique<LearnedPositions>(context, table, config_.max_position_embeddings,
                                                             config_.hidden_size, config_.init_method_std, shared);
    register_module(*embedding.positions);
    block.modules.push_back(embedding.positions.get());
  }
  embedding.dropout.emplace(context, name, config_.hidden_dropout);
  add_block(std::move(block));
}

std::unique_ptr<RelativeBias> EncoderDecoder::make_bias(const LayerContext& context, const std::string& layers,
                                                        bool is_bidirectional) {
  if (config_.position_embedding() != PositionEmbedding::kRelative) return nullptr;
  const std::string name = first_layer_name(layers) + "." + names_.relative_bias;
  auto bias =
      std::make_unique<RelativeBias>(context, name,
                                     RelativeBiasOptions{.num_heads = config_.num_attention_heads,
                                                         .num_buckets = config_.relative_attention_num_buckets,
                                                         .max_distance = config_.relative_attention_max_distance,
                                                         .is_bidirectional = is_bidirectional,
                                                         .init_std = config_.init_method_std,
                                                         .pipeline_ranks = part().holders(name)},
                                     part().find(name));
  register_module(*bias);
  add_block({.name = layers + " relative positions", .modules = {bias.get()}, .is_layer = false});
  return bias;
}

LayerContext EncoderDecoder::layer_context(const LayerContext& context, int64_t layer) const {
  LayerContext own = context;
  if (own.recipe != nullptr && own.recipe->leaves_plain(layer, config_.num_all_layers())) own.recipe = nullptr;
  return own;
}

ExpertNames EncoderDecoder::expert_names() const {
  const MlpNames linears = mlp_names();
  return {.gate = linears.gate,
          .up = linears.up,
          .down = linears.down,
          .router = names_.router,
          .bias = names_.router_bias};
}

void EncoderDecoder::make_encoder_layer(const Unit& unit, const LayerContext& context) {
  const bool is_first = encoder_.empty();
  if (is_first) first_of_encoder_ = unit.number;
  if (is_first) encoder_bias_ = make_bias(context, names_.encoder_layers, /*is_bidirectional=*/true);
  const double depth = 2.0 * static_cast<double>(config_.num_layers);
  const DecoderSite site{.names = names_.encoder,
                         .attention = names_.attention,
                         .mlp = mlp_names(),
                         .experts = expert_names(),
                         .has_experts = config_.has_experts_at(unit.number),
                         .output_init_std = config_.init_method_std / std::sqrt(depth),
                         .layer = unit.number};
  encoder_.push_back(std::make_unique<DecoderLayer>(layer_context(context, unit.number), unit.name, config_, site));
  register_module(*encoder_.back());
  add_layer(*encoder_.back(), unit.name, unit.number, is_first);
}

void EncoderDecoder::make_encoder_norm(const LayerContext& context) {
  encoder_norm_ = std::make_unique<Norm>(context, names_.encoder_norm, config_.hidden_size, config_);
  register_module(*encoder_norm_);
  add_block({.name = kEncoderNormUnit, .modules = {encoder_norm_.get()}, .is_layer = false});
}

void EncoderDecoder::make_decoder_layer(const Unit& unit, const LayerContext& context) {
  const bool is_first = decoder_.empty();
  if (is_first) decoder_bias_ = make_bias(context, names_.decoder_layers, /*is_bidirectional=*/false);
  const int64_t number = config_.num_layers + unit.number;
  if (is_first) first_of_decoder_ = number;
  // A layer adds to the stream three times.
  const double depth = 3.0 * static_cast<double>(config_.num_decoder_layers());
  const CrossDecoderSite site{.names = names_.decoder,
                              .attention = names_.attention,
                              .linears = mlp_names(),
                              .experts = expert_names(),
                              .has_experts = config_.has_experts_at(number),
                              .output_init_std = config_.init_method_std / std::sqrt(depth),
                              .layer = number};
  decoder_.push_back(std::make_unique<CrossDecoderLayer>(layer_context(context, number), unit.name, config_, site));
  register_module(*decoder_.back());
  add_layer(*decoder_.back(), unit.name, number, is_first);
}

void EncoderDecoder::make_head(const LayerContext& context) {
  decoder_norm_ = std::make_unique<Norm>(context, names_.decoder_norm, config_.hidden_size, config_);
  register_module(*decoder_norm_);
  VocabularyWeight weight = table_weight(context.groups->tp->size());
  if (!is_tied()) {
    weight.name = names_.head + ".weight";
    weight.pipeline_ranks.clear();
    weight.aliases.clear();
  }
  std::vector<std::string> bias;
  if (config_.has_linear_bias() && is_tied()) bias.push_back(names_.head + ".bias");
  head_ = std::make_unique<LmHead>(context, weight, is_tied() ? embedding_std() : config_.init_method_std,
                                   is_tied() ? table() : nullptr, config_.final_logit_softcapping, bias);
  register_module(*head_);
  add_block({.name = "head", .modules = {decoder_norm_.get(), head_.get()}, .is_layer = false});
}

void EncoderDecoder::add_layer(const Module& layer, const std::string& name, int64_t number, bool is_first_of_stack) {
  const int64_t per_block = part().layers_per_block;
  MEGALITH_CHECK(per_block > 0, "blocks of {} layers", per_block);
  if (first_layer_ < 0) first_layer_ = number;
  const int64_t place = (number - first_layer_) % per_block;
  // No block has layers of both stacks. One that a new stack cuts short is recomputed as its whole group is.
  if (place == 0 || is_first_of_stack) {
    add_block({.name = name, .layer = number - place, .adds_inputs = !is_first_of_stack});
  }
  blocks_.back().modules.push_back(&layer);
}

void EncoderDecoder::add_block(Block block) {
  block.index = std::ssize(blocks_);
  blocks_.push_back(std::move(block));
}

// ---- A pass ----

ForwardContext EncoderDecoder::encoder_context(const ModelInput& input, const ForwardContext& of_decoder) const {
  const auto find = [&](const char* name) {
    const at::Tensor* tensor = input.more.find(name);
    return tensor == nullptr ? at::Tensor() : *tensor;
  };
  ForwardContext context;
  context.b = input.context.b;
  context.s = input.context.encoder_s;
  context.row_ids = find("encoder_row_ids");
  context.mask.is_causal = false;
  context.mask.key_lengths = find("encoder_key_lengths");
  context.is_training = of_decoder.is_training;
  context.expert_records = of_decoder.expert_records;
  context.objective_scale = of_decoder.objective_scale;
  return context;
}

ModelOutput EncoderDecoder::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  ForwardContext context = input.context;
  context.mask.is_causal = true;
  if (config_.has_experts()) context.expert_records = std::make_shared<ExpertRecords>();
  context.objective_scale = head == HeadOutput::kLoss ? input.per_microbatch : 0;
  if (context.encoder_s < 1) {
    throw UserError("model_type t5 got no tokens for its encoder",
                    "this command or task is for decoders; inspect logits and generate take model_type t5");
  }
  for (const int64_t s : {context.encoder_s, context.s}) {
    if (context.b * s % token_split_ == 0) continue;
    throw UserError(
        fmt::format("sequence_parallel splits {} tokens ({} sequences of {}) over {} ranks", context.b * s, context.b,
                    s, token_split_),
        fmt::format("make micro_batch_size times the length of the encoder's and of the decoder's sequences "
                    "multiples of {}",
                    token_split_));
  }
  Blocks block = blocks_.begin();
  ResidualStream stream;
  if (const at::Tensor* hidden = boundary.find("hidden")) stream.delta = *hidden;
  const ForwardContext of_encoder = encoder_context(input, context);
  const EncoderMemory memory{.hidden = memory_of(block, input, of_encoder, boundary, stream),
                             .lengths = of_encoder.mask.key_lengths,
                             .s = context.encoder_s};
  if (decoder_embedding_.tokens) {
    stream = {.delta = embed(block, decoder_embedding_, input.tokens, context), .residual = {}};
  }
  if (!decoder_.empty()) stream = decode(block, std::move(stream), memory, context);
  ModelOutput output;
  if (head_) {
    // The objectives are differentiable, what else the head tells is not.
    const std::vector<at::Tensor> objectives =
        run_block(runner(), *block, {stream.delta, stream.residual}, [&](const std::vector<at::Tensor>& inputs) {
          output = head_output(input, {inputs[0], inputs[1]}, head);
          std::vector<at::Tensor> terms;
          for (const LossTerm& term : output.terms) terms.push_back(term.objective);
          return terms;
        });
    for (size_t i = 0; i < objectives.size(); ++i) output.terms[i].objective = objectives[i];
  } else {
    Bundle given;
    if (stream.delta.defined()) given.set("hidden", stream.sum());
    if (memory.hidden.defined()) given.set("memory", memory.hidden);
    output.boundary = part().is_last() ? given : outgoing_bundle(part().units, part().range, given, boundary);
  }
  if (context.expert_records) report_experts(config_, *cp_, *context.expert_records, head, output);
  return output;
}

std::vector<std::string> EncoderDecoder::added_losses() const { return expert_loss_names(config_); }

std::vector<ObservationSpec> EncoderDecoder::observations() const {
  return expert_observations(config_, config_.num_all_layers());
}

void EncoderDecoder::after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) {
  move_expert_biases(config_, routers(), observed, is_made);
}

std::map<int64_t, ExpertRouter*> EncoderDecoder::routers() {
  std::map<int64_t, ExpertRouter*> all;
  const auto add = [&](const auto& layers, int64_t number) {
    for (const auto& layer : layers) {
      if (layer->router() != nullptr) all[number] = layer->router();
      ++number;
    }
  };
  add(encoder_, first_of_encoder_);
  add(decoder_, first_of_decoder_);
  return all;
}

at::Tensor EncoderDecoder::memory_of(Blocks& block, const ModelInput& input, const ForwardContext& context,
                                     const Bundle& boundary, ResidualStream& stream) const {
  KvCache* cache = input.context.cache;
  if (encoder_norm_ && cache != nullptr && cache->memory.defined()) {
    block = std::find_if(block, blocks_.end(), [](const Block& one) { return one.name == kEncoderNormUnit; }) + 1;
    stream = {};
    return cache->memory;
  }
  if (encoder_embedding_.tokens) {
    stream = {.delta = embed(block, encoder_embedding_, input.more.at("encoder_tokens"), context), .residual = {}};
  }
  if (!encoder_.empty()) stream = encode(block, std::move(stream), context);
  if (!encoder_norm_) {
    const at::Tensor* memory = boundary.find("memory");
    return memory == nullptr ? at::Tensor() : *memory;
  }
  const at::Tensor memory = run_block(runner(), *block++, {stream.delta, stream.residual},
                                      [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
                                        ResidualStream last{inputs[0], inputs[1]};
                                        return {encoder_norm_->forward(last)};
                                      })[0];
  stream = {};
  if (cache != nullptr) cache->memory = memory;
  return memory;
}

at::Tensor EncoderDecoder::embed(Blocks& block, const Embedding& embedding, const at::Tensor& token_ids,
                                 const ForwardContext& context) const {
  const at::Tensor tokens = token_ids.reshape({-1});
  MEGALITH_CHECK(tokens.size(0) == context.b * context.s, "{} tokens, but b {} and s {}", tokens.size(0), context.b,
                 context.s);
  check_token_ids(tokens, *config_.vocab_size);
  return run_block(runner(), *block++, {}, [&](const auto&) -> std::vector<at::Tensor> {
    at::Tensor x = embedding.tokens->forward(tokens);
    if (embedding.positions) x = x + embedding.positions->forward(context);
    return {embedding.dropout->forward(x, context)};
  })[0];
}

at::Tensor EncoderDecoder::bias_of(Blocks& block, RelativeBias* bias, const ForwardContext& context) const {
  if (bias == nullptr) return {};
  const int64_t first = context.cache == nullptr ? 0 : context.cache->length;
  return run_block(runner(), *block++, {}, [&](const auto&) -> std::vector<at::Tensor> {
    return {bias->forward(context.s, first + context.s, first)};
  })[0];
}

ResidualStream EncoderDecoder::encode(Blocks& block, ResidualStream stream, const ForwardContext& context) const {
  const at::Tensor bias = bias_of(block, encoder_bias_.get(), context);
  for (auto layer = encoder_.begin(); layer != encoder_.end(); ++block) {
    std::vector<DecoderLayer*> layers;
    for (size_t i = 0; i < block->modules.size(); ++i, ++layer) layers.push_back(layer->get());
    // By value: a runner may call it again after this pass.
    const BlockBody body = [layers, context](const std::vector<at::Tensor>& inputs) {
      ForwardContext own = context;
      own.mask.bias = inputs[2];
      ResidualStream through{inputs[0], inputs[1]};
      for (DecoderLayer* one : layers) through = one->forward(std::move(through), own, {});
      return std::vector<at::Tensor>{through.delta, through.residual};
    };
    const std::vector<at::Tensor> outputs = run_block(runner(), *block, {stream.delta, stream.residual, bias}, body);
    stream = {outputs[0], outputs[1]};
  }
  return stream;
}

ResidualStream EncoderDecoder::decode(Blocks& block, ResidualStream stream, const EncoderMemory& memory,
                                      const ForwardContext& context) const {
  const at::Tensor bias = bias_of(block, decoder_bias_.get(), context);
  for (auto layer = decoder_.begin(); layer != decoder_.end(); ++block) {
    std::vector<CrossDecoderLayer*> layers;
    for (size_t i = 0; i < block->modules.size(); ++i, ++layer) layers.push_back(layer->get());
    const BlockBody body = [layers, context, lengths = memory.lengths,
                            s = memory.s](const std::vector<at::Tensor>& inputs) {
      ForwardContext own = context;
      own.mask.bias = inputs[2];
      const EncoderMemory read{.hidden = inputs[3], .lengths = lengths, .s = s};
      ResidualStream through{inputs[0], inputs[1]};
      for (CrossDecoderLayer* one : layers) through = one->forward(std::move(through), read, own);
      return std::vector<at::Tensor>{through.delta, through.residual};
    };
    const std::vector<at::Tensor> outputs =
        run_block(runner(), *block, {stream.delta, stream.residual, bias, memory.hidden}, body);
    stream = {outputs[0], outputs[1]};
  }
  return stream;
}

ModelOutput EncoderDecoder::head_output(const ModelInput& input, ResidualStream stream, HeadOutput head) const {
  at::Tensor hidden = decoder_norm_->forward(stream);
  if (config_.scale_decoder_outputs) hidden = hidden / std::sqrt(static_cast<double>(config_.hidden_size));
  return lm_output(*head_, hidden, input, head);
}

std::vector<TensorSpec> EncoderDecoder::boundary(const ForwardContext& context) const {
  const std::span<const Unit> before = units_in(part().units, {0, part().range.first});
  const bool is_encoded =
      std::any_of(before.begin(), before.end(), [](const Unit& unit) { return unit.kind == kEncoderNormUnit; });
  std::vector<TensorSpec> tensors;
  for (std::string& name : boundary_before(part().units, part().range.first)) {
    const bool is_of_encoder = name == "memory" || !is_encoded;
    const int64_t tokens = div_exact(context.b * (is_of_encoder ? context.encoder_s : context.s), token_split_);
    tensors.push_back({std::move(name), {tokens, config_.hidden_size}, dtype_});
  }
  return tensors;
}

// The encoder's parts see its sequences.
CostShape EncoderDecoder::shape_of(const Module& child, const CostShape& shape) const {
  const auto is_child = [&](const auto& module) { return module.get() == &child; };
  return std::any_of(encoder_.begin(), encoder_.end(), is_child) ? CostShape{.b = shape.b, .s = shape.encoder_s}
                                                                 : shape;
}

std::unique_ptr<Model> build_encoder_decoder(const ModelConfig& config, const LayerContext& context,
                                             const ModelPart& part) {
  return std::make_unique<EncoderDecoder>(config, context, part);
}

}  // namespace megalith
