// See encoder_decoder.h.
#include "models/encoder_decoder.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <utility>

#include "comm/groups.h"
#include "models/lm_output.h"
#include "models/token_ids.h"
#include "models/unit_chunk.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/relative_bias.h"

namespace megalith {

namespace {

// What queries add to their scores: one table a stack, which its layers share. Not in the list of units, for it never
// travels between stages.
constexpr const char* kBias = "bias";

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

namespace {

struct EncoderDecoderPass : UnitPass {
  ForwardContext encoder;          // of its sequences; UnitPass::context is the decoder's
  bool has_cached_memory = false;  // the encoder need not run

  const ForwardContext& context_of(bool is_encoder) const { return is_encoder ? encoder : context; }
};

const EncoderDecoderPass& both_of(const UnitPass& pass) { return pass.as<EncoderDecoderPass>(); }

CostShape encoder_shape(const CostShape& shape) { return {.b = shape.b, .s = shape.encoder_s}; }

// A stack's tokens become the stream.
class StackEmbedding : public UnitModule {
 public:
  StackEmbedding(const ModelConfig& config, const EncoderDecoderNames& names, const LayerContext& context,
                 const VocabularyWeight& weight, Parameter* table, const SharedRows& positions, bool is_encoder)
      : vocab_size_(*config.vocab_size),
        is_encoder_(is_encoder),
        tokens_(context, weight, config.embedding_init_method_std.value_or(config.init_method_std), table),
        dropout_(context, is_encoder ? kEncoderEmbeddingUnit : kDecoderEmbeddingUnit, config.hidden_dropout) {
    register_module(tokens_);
    if (config.position_embedding() != PositionEmbedding::kLearnedAbsolute) return;
    register_module(positions_.emplace(context, names.positions + ".weight", config.max_position_embeddings,
                                       config.hidden_size, config.init_method_std, positions));
  }

  Streams forward(Streams /*in*/, const UnitPass& pass) override {
    const ForwardContext& context = both_of(pass).context_of(is_encoder_);
    const at::Tensor tokens = (is_encoder_ ? pass.input->more.at("encoder_tokens") : pass.input->tokens).reshape({-1});
    MEGALITH_CHECK(tokens.size(0) == context.b * context.s, "{} tokens, but b {} and s {}", tokens.size(0), context.b,
                   context.s);
    check_token_ids(tokens, vocab_size_);
    at::Tensor x = tokens_.forward(tokens);
    if (positions_) x = x + positions_->forward(context);
    return {{dropout_.forward(x, context), {}}};
  }

 private:
  int64_t vocab_size_;
  bool is_encoder_;
  VocabParallelEmbedding tokens_;
  std::optional<LearnedPositions> positions_;
  HiddenDropout dropout_;
};

class StackBias : public UnitModule {
 public:
  StackBias(const LayerContext& context, const std::string& name, const RelativeBiasOptions& options, Parameter* table)
      : is_encoder_(options.is_bidirectional), bias_(context, name, options, table) {
    register_module(bias_);
  }
  Streams forward(Streams /*in*/, const UnitPass& pass) override {
    const ForwardContext& context = both_of(pass).context_of(is_encoder_);
    const int64_t first = context.cache == nullptr ? 0 : context.cache->length;
    return {{bias_.forward(context.s, first + context.s, first), {}}};
  }

 private:
  bool is_encoder_;
  RelativeBias bias_;
};

class EncoderLayer : public UnitModule {
 public:
  EncoderLayer(const ModelConfig& config, const LayerContext& context, const std::string& name, const DecoderSite& site)
      : number_(site.layer), layer_(context, name, config, site) {
    register_module(layer_);
  }
  Streams forward(Streams in, const UnitPass& pass) override {
    ForwardContext own = both_of(pass).encoder;
    if (in.size() > 1) own.mask.bias = in[1].delta;
    return {layer_.forward(std::move(in[0]), own, {})};
  }
  CostShape shape_in(const CostShape& shape) const override { return encoder_shape(shape); }
  void add_routers(std::map<int64_t, ExpertRouter*>& routers) override {
    if (layer_.router() != nullptr) routers[number_] = layer_.router();
  }

 private:
  int64_t number_;
  DecoderLayer layer_;
};

class EncoderNorm : public UnitModule {
 public:
  EncoderNorm(const ModelConfig& config, const LayerContext& context, const std::string& name)
      : norm_(context, name, config.hidden_size, config) {
    register_module(norm_);
  }
  Streams forward(Streams in, const UnitPass& pass) override {
    KvCache* cache = pass.context.cache;
    if (both_of(pass).has_cached_memory) return {{cache->memory, {}}};
    const at::Tensor memory = norm_.forward(in[0]);
    if (cache != nullptr) cache->memory = memory;
    return {{memory, {}}};
  }

 private:
  Norm norm_;
};

class DecoderStackLayer : public UnitModule {
 public:
  DecoderStackLayer(const ModelConfig& config, const LayerContext& context, const std::string& name,
                    const CrossDecoderSite& site)
      : number_(site.layer), layer_(context, name, config, site) {
    register_module(layer_);
  }
  Streams forward(Streams in, const UnitPass& pass) override {
    const ForwardContext& encoder = both_of(pass).encoder;
    const EncoderMemory memory{.hidden = in[1].delta, .lengths = encoder.mask.key_lengths, .s = encoder.s};
    ForwardContext own = pass.context;
    if (in.size() > 2) own.mask.bias = in[2].delta;
    return {layer_.forward(std::move(in[0]), memory, own)};
  }
  void add_routers(std::map<int64_t, ExpertRouter*>& routers) override {
    if (layer_.router() != nullptr) routers[number_] = layer_.router();
  }

 private:
  int64_t number_;
  CrossDecoderLayer layer_;
};

class DecoderStackHead : public UnitModule {
 public:
  // table: null where the output has a weight of its own.
  DecoderStackHead(const ModelConfig& config, const EncoderDecoderNames& names, const LayerContext& context,
                   const VocabularyWeight& weight, Parameter* table, double init_std,
                   const std::vector<std::string>& bias)
      : divisor_(config.scale_decoder_outputs ? std::sqrt(static_cast<double>(config.hidden_size)) : 1),
        norm_(context, names.decoder_norm, config.hidden_size, config),
        head_(context, weight, init_std, table, config.final_logit_softcapping, bias) {
    register_module(norm_);
    register_module(head_);
  }
  Streams forward(Streams in, const UnitPass& pass) override {
    at::Tensor hidden = norm_.forward(in[0]);
    if (divisor_ != 1) hidden = hidden / divisor_;
    *pass.output = lm_output(head_, hidden, *pass.input, pass.head);
    return {};
  }

 private:
  double divisor_;
  Norm norm_;
  LmHead head_;
};

std::vector<UserError> check_ranks(const LayerContext& context) {
  const int cp = context.groups->cp->size();
  if (cp == 1) return {};
  return {UserError(
      fmt::format("context_parallel_size is {}, and model_type t5 has two sequences, which would both have to be cut",
                  cp),
      "set context_parallel_size to 1; tensor, pipeline and data parallelism take model_type t5")};
}

class EncoderDecoder : public UnitChunk {
 public:
  EncoderDecoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
      : UnitChunk(config, context, part, /*is_text=*/true, check_ranks(context)) {
    make_units(context);
  }

 protected:
  std::vector<Step> make_steps(const Unit& unit, const LayerContext& context, int64_t layer) override {
    const bool is_encoder = unit.kind == kEncoderEmbeddingUnit || unit.kind == kEncoderLayerUnit;
    std::vector<Step> steps;
    if (unit.kind == kEncoderEmbeddingUnit || unit.kind == kDecoderEmbeddingUnit) {
      const std::string positions = names_.positions + ".weight";
      const SharedRows shared{.pipeline_ranks = part().holders(positions), .tied = find_parameter(positions)};
      steps.push_back(block_step(unit,
                                 std::make_unique<StackEmbedding>(config(), names_, context, table_weight(context),
                                                                  table(), shared, is_encoder),
                                 unit.kind));
    } else if (unit.kind == kEncoderNormUnit) {
      steps.push_back(
          block_step(unit, std::make_unique<EncoderNorm>(config(), context, names_.encoder_norm), unit.kind));
    } else if (unit.kind == kDecoderHeadUnit) {
      steps.push_back(block_step(unit, make_head(context), "head"));
    } else {
      MEGALITH_CHECK(unit.kind == kEncoderLayerUnit || unit.kind == kDecoderLayerUnit,
                     "an encoder and decoder has no unit of kind {}", unit.kind);
      const bool has_bias = config().position_embedding() == PositionEmbedding::kRelative;
      bool& has_table = is_encoder ? has_encoder_bias_ : has_decoder_bias_;
      if (has_bias && !std::exchange(has_table, true)) steps.push_back(make_bias(unit, context, is_encoder));
      steps.push_back(layer_step(unit, make_layer(unit, context, layer, is_encoder)));
      if (has_bias) steps.back().reads.emplace_back(kBias);
      steps.back().adds_inputs = true;
    }
    return steps;
  }

  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override {
    if (context.encoder_s < 1) {
      throw UserError("model_type t5 got no tokens for its encoder",
                      "this command or task is for decoders; inspect logits and generate take model_type t5");
    }
    for (const int64_t s : {context.encoder_s, context.s}) {
      if (context.b * s % token_split() == 0) continue;
      throw UserError(
          fmt::format("sequence_parallel splits {} tokens ({} sequences of {}) over {} ranks", context.b * s, context.b,
                      s, token_split()),
          fmt::format("make micro_batch_size times the length of the encoder's and of the decoder's sequences "
                      "multiples of {}",
                      token_split()));
    }
    const auto find = [&](const char* name) {
      const at::Tensor* tensor = input.more.find(name);
      return tensor == nullptr ? at::Tensor() : *tensor;
    };
    auto pass = std::make_shared<EncoderDecoderPass>();
    pass->context = context;
    pass->context.mask.is_causal = true;
    ForwardContext& encoder = pass->encoder;
    encoder.b = context.b;
    encoder.s = context.encoder_s;
    encoder.row_ids = find("encoder_row_ids");
    encoder.mask.is_causal = false;
    encoder.mask.key_lengths = find("encoder_key_lengths");
    encoder.is_training = context.is_training;
    encoder.expert_records = context.expert_records;
    encoder.objective_scale = context.objective_scale;
    const auto has_norm = [](const Unit& unit) { return unit.kind == kEncoderNormUnit; };
    pass->has_cached_memory = context.cache != nullptr && context.cache->memory.defined() &&
                              std::ranges::any_of(part().own_units(), has_norm);
    return pass;
  }

  bool skips(const Unit& unit, const UnitPass& pass) const override {
    return both_of(pass).has_cached_memory && (unit.kind == kEncoderEmbeddingUnit || unit.kind == kEncoderLayerUnit);
  }

  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override {
    const std::span<const Unit> before = units_in(part().units, {0, part().range.first});
    const bool is_encoded = std::ranges::find(before, kEncoderNormUnit, &Unit::kind) != before.end();
    const bool is_of_encoder = tensor == "memory" || !is_encoded;
    return div_exact(context.b * (is_of_encoder ? context.encoder_s : context.s), token_split());
  }

 private:
  bool is_tied() const { return !config().untie_embeddings_and_output_weights; }
  Parameter* table() const { return find_parameter(names_.embedding + ".weight"); }

  VocabularyWeight table_weight(const LayerContext& context) const {
    VocabularyWeight weight{.name = names_.embedding + ".weight",
                            .vocab = *config().vocab_size,
                            .padded_vocab = config().padded_vocab_size(context.groups->tp->size()),
                            .hidden = config().hidden_size};
    weight.pipeline_ranks = part().holders(weight.name);
    for (const std::string& alias : names_.embedding_aliases) weight.aliases.push_back(alias + ".weight");
    if (is_tied()) weight.aliases.push_back(names_.head + ".weight");
    return weight;
  }

  // The table of a stack, made with the stack's first layer here.
  Step make_bias(const Unit& unit, const LayerContext& context, bool is_encoder) const {
    const std::string& layers = is_encoder ? names_.encoder_layers : names_.decoder_layers;
    const std::string name = first_layer_name(layers) + "." + names_.relative_bias;
    const RelativeBiasOptions options{.num_heads = config().num_attention_heads,
                                      .num_buckets = config().relative_attention_num_buckets,
                                      .max_distance = config().relative_attention_max_distance,
                                      .is_bidirectional = is_encoder,
                                      .init_std = config().init_method_std,
                                      .pipeline_ranks = part().holders(name)};
    Step step = block_step(unit, std::make_unique<StackBias>(context, name, options, part().find(name)),
                           layers + " relative positions");
    step.reads = {};
    step.gives = {kBias};
    return step;
  }

  // layer: in the whole model.
  std::unique_ptr<UnitModule> make_layer(const Unit& unit, const LayerContext& context, int64_t layer,
                                         bool is_encoder) const {
    const LayerContext own = layer_context(context, layer, config().num_all_layers());
    const MlpNames linears = config().is_gated() ? names_.gated : names_.plain;
    const ExpertNames experts{.gate = linears.gate,
                              .up = linears.up,
                              .down = linears.down,
                              .router = names_.router,
                              .bias = names_.router_bias};
    // A layer of the decoder adds to the stream three times.
    const double depth = is_encoder ? 2.0 * static_cast<double>(config().num_layers)
                                    : 3.0 * static_cast<double>(config().num_decoder_layers());
    const double output_init_std = config().init_method_std / std::sqrt(depth);
    if (is_encoder) {
      const DecoderSite site{.names = names_.encoder,
                             .attention = names_.attention,
                             .mlp = linears,
                             .experts = experts,
                             .has_experts = config().has_experts_at(layer),
                             .output_init_std = output_init_std,
                             .layer = layer};
      return std::make_unique<EncoderLayer>(config(), own, unit.name, site);
    }
    const CrossDecoderSite site{.names = names_.decoder,
                                .attention = names_.attention,
                                .linears = linears,
                                .experts = experts,
                                .has_experts = config().has_experts_at(layer),
                                .output_init_std = output_init_std,
                                .layer = layer};
    return std::make_unique<DecoderStackLayer>(config(), own, unit.name, site);
  }

  std::unique_ptr<UnitModule> make_head(const LayerContext& context) const {
    VocabularyWeight weight = table_weight(context);
    if (!is_tied()) {
      weight.name = names_.head + ".weight";
      weight.pipeline_ranks.clear();
      weight.aliases.clear();
    }
    std::vector<std::string> bias;
    if (config().has_linear_bias() && is_tied()) bias.push_back(names_.head + ".bias");
    const double init_std =
        is_tied() ? config().embedding_init_method_std.value_or(config().init_method_std) : config().init_method_std;
    return std::make_unique<DecoderStackHead>(config(), names_, context, weight, is_tied() ? table() : nullptr,
                                              init_std, bias);
  }

  EncoderDecoderNames names_;
  bool has_encoder_bias_ = false, has_decoder_bias_ = false;
};

}  // namespace

std::unique_ptr<Model> build_encoder_decoder(const ModelConfig& config, const LayerContext& context,
                                             const ModelPart& part) {
  return std::make_unique<EncoderDecoder>(config, context, part);
}

}  // namespace megalith
