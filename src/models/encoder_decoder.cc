#include "models/encoder_decoder.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <utility>

#include "comm/groups.h"
#include "models/lm_output.h"
#include "models/text_units.h"
#include "nn/lm_head.h"
#include "nn/relative_bias.h"

namespace megalith {

namespace {

// Added to all scores of a stack. Not in the unit list, as it never travels between stages.
constexpr const char* kBias = "bias";

std::string first_layer_name(const std::string& layers) { return layers + ".0"; }

}  // namespace

std::vector<Unit> encoder_decoder_units(const ModelConfig& config) {
  const EncoderDecoderNames names;
  const std::vector<std::string> hidden = {"hidden"}, both = {"hidden", kMemory};
  const UsedParameter table{.unit = names.embedding, .parameter = names.embedding + ".weight"};
  const bool is_relative = config.position_embedding() == PositionEmbedding::kRelative;
  std::vector<Unit> units;
  const auto add_layers = [&](const char* kind, const std::string& layers, int64_t count,
                              const std::vector<std::string>& reads) {
    const UsedParameter bias{.unit = first_layer_name(layers),
                             .parameter = first_layer_name(layers) + "." + names.relative_bias};
    for (int64_t layer = 0; layer < count; ++layer) {
      units.push_back(layer_unit(kind, layers, layer, reads, hidden));
      if (is_relative && layer > 0) units.back().uses = {bias};
    }
  };
  units.push_back(
      {.kind = kEncoderEmbeddingUnit, .name = names.embedding, .letter = UnitLetter::kEmbedding, .gives = hidden});
  add_layers(kEncoderLayerUnit, names.encoder_layers, config.num_layers, hidden);
  units.back().stays_with_next = true;
  units.push_back({.kind = kEncoderNormUnit, .name = names.encoder_norm, .reads = hidden, .gives = {kMemory}});
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

// Indices of a pass's sides and their contexts.
constexpr size_t kEncoderSide = 0, kDecoderSide = 1;

struct EncoderDecoderPass : TextPass {
  bool has_cached_memory = false;  // the encoder is skipped
};

const ForwardContext& context_of(const UnitPass& pass, size_t side) { return pass.as<TextPass>().sides[side].context; }

CostShape encoder_shape(const Module& /*part*/, const CostShape& shape) { return {.b = shape.b, .s = shape.encoder_s}; }

void make_encoder_norm(UnitModule& unit, const ModelConfig& config, const LayerContext& context,
                       const std::string& name) {
  auto& norm = unit.add<Norm>(context, name, config.hidden_size, config);
  unit.forward = [&norm](Streams in, const UnitPass& pass) -> Streams {
    KvCache* cache = pass.context.cache;
    if (pass.as<EncoderDecoderPass>().has_cached_memory) return {{cache->memory, {}}};
    const at::Tensor memory = norm.forward(in[0]);
    if (cache != nullptr) cache->memory = memory;
    return {{memory, {}}};
  };
}

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
  void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) override {
    if (unit.kind == kEncoderEmbeddingUnit || unit.kind == kDecoderEmbeddingUnit) {
      make_embedding(unit, context);
    } else if (unit.kind == kEncoderNormUnit) {
      make_encoder_norm(add_block(unit, unit.kind), config(), context, names_.encoder_norm);
    } else if (unit.kind == kDecoderHeadUnit) {
      make_head(add_block(unit, "head"), context);
    } else {
      MEGALITH_CHECK(unit.kind == kEncoderLayerUnit || unit.kind == kDecoderLayerUnit,
                     "an encoder and decoder has no unit of kind {}", unit.kind);
      make_layer(unit, context, layer, unit.kind == kEncoderLayerUnit);
    }
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
    auto pass = std::make_shared<EncoderDecoderPass>();
    pass->context = context;
    pass->context.mask.is_causal = true;
    ForwardContext encoder;
    encoder.b = context.b;
    encoder.s = context.encoder_s;
    encoder.row_ids = found(input, input::kEncoderRowIds);
    encoder.mask.is_causal = false;
    encoder.mask.key_lengths = found(input, input::kEncoderKeyLengths);
    encoder.is_training = context.is_training;
    encoder.expert_records = context.expert_records;
    encoder.objective_scale = context.objective_scale;
    const auto side = [](const at::Tensor& tokens, const ForwardContext& own) {
      return TextSide{.tokens = tokens, .token_types = {}, .context = own, .views = {}};
    };
    pass->sides = {side(found(input, input::kEncoderTokens), encoder), side(input.tokens, pass->context)};
    const auto has_norm = [](const Unit& unit) { return unit.kind == kEncoderNormUnit; };
    pass->has_cached_memory = context.cache != nullptr && context.cache->memory.defined() &&
                              std::ranges::any_of(part().own_units(), has_norm);
    return pass;
  }

  bool skips(const Unit& unit, const UnitPass& pass) const override {
    return pass.as<EncoderDecoderPass>().has_cached_memory &&
           (unit.kind == kEncoderEmbeddingUnit || unit.kind == kEncoderLayerUnit);
  }

  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override {
    const std::span<const Unit> before = units_in(part().units, {0, part().range.first});
    const bool is_encoded = std::ranges::find(before, kEncoderNormUnit, &Unit::kind) != before.end();
    const bool is_of_encoder = tensor == kMemory || !is_encoded;
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

  void make_embedding(const Unit& unit, const LayerContext& context) {
    const std::string positions = names_.positions + ".weight";
    const SharedRows shared{.pipeline_ranks = part().holders(positions), .tied = find_parameter(positions)};
    make_token_embedding(add_block(unit, unit.kind), config(), context,
                         {.weight = table_weight(context),
                          .table = table(),
                          .positions = names_.positions,
                          .shared_positions = shared,
                          .dropout = unit.kind,
                          .side = unit.kind == kEncoderEmbeddingUnit ? kEncoderSide : kDecoderSide});
  }

  // A stack's relative position table, made with its first layer here.
  void make_bias(const Unit& unit, const LayerContext& context, bool is_encoder) {
    const std::string& layers = is_encoder ? names_.encoder_layers : names_.decoder_layers;
    const std::string name = first_layer_name(layers) + "." + names_.relative_bias;
    const RelativeBiasOptions options{.num_heads = config().num_attention_heads,
                                      .num_buckets = config().relative_attention_num_buckets,
                                      .max_distance = config().relative_attention_max_distance,
                                      .is_bidirectional = is_encoder,
                                      .init_std = config().init_method_std,
                                      .pipeline_ranks = part().holders(name)};
    UnitModule& module = add_block(unit, layers + " relative positions");
    module.reads = {};
    module.gives = {kBias};
    auto& bias = module.add<RelativeBias>(context, name, options, part().find(name));
    module.forward = [&bias, is_encoder](const Streams& /*in*/, const UnitPass& pass) -> Streams {
      const ForwardContext& own = context_of(pass, is_encoder ? kEncoderSide : kDecoderSide);
      const int64_t first = own.cache == nullptr ? 0 : own.cache->length;
      return {{bias.forward(own.s, first + own.s, first), {}}};
    };
  }

  // layer: in the whole model.
  void make_layer(const Unit& unit, const LayerContext& context, int64_t layer, bool is_encoder) {
    const bool has_bias = config().position_embedding() == PositionEmbedding::kRelative;
    bool& has_table = is_encoder ? has_encoder_bias_ : has_decoder_bias_;
    if (has_bias && !std::exchange(has_table, true)) make_bias(unit, context, is_encoder);
    UnitModule& module = add_layer(unit);
    if (has_bias) module.reads.emplace_back(kBias);
    module.adds_inputs = true;
    const LayerContext own = layer_context(context, layer, config().num_all_layers());
    const MlpNames linears = config().is_gated() ? names_.gated : names_.plain;
    const ExpertNames experts{.gate = linears.gate,
                              .up = linears.up,
                              .down = linears.down,
                              .router = names_.router,
                              .bias = names_.router_bias};
    const bool has_experts = config().has_experts_at(layer);
    // A decoder layer has three residual additions.
    const double depth = is_encoder ? 2.0 * static_cast<double>(config().num_layers)
                                    : 3.0 * static_cast<double>(config().num_decoder_layers());
    const double output_init_std = config().init_method_std / std::sqrt(depth);
    if (is_encoder) {
      const DecoderSite site{.names = names_.encoder,
                             .attention = names_.attention,
                             .mlp = linears,
                             .experts = experts,
                             .has_experts = has_experts,
                             .output_init_std = output_init_std,
                             .layer = layer};
      auto& block = module.add<DecoderLayer>(own, unit.name, config(), site);
      module.add_router(layer, block.router());
      module.cost_shape = encoder_shape;
      module.forward = [&block](Streams in, const UnitPass& pass) -> Streams {
        ForwardContext context = context_of(pass, kEncoderSide);
        if (in.size() > 1) context.mask.bias = in[1].delta;
        return {block.forward(std::move(in[0]), context, {})};
      };
      return;
    }
    const CrossDecoderSite site{.names = names_.decoder,
                                .attention = names_.attention,
                                .linears = linears,
                                .experts = experts,
                                .has_experts = has_experts,
                                .output_init_std = output_init_std,
                                .layer = layer};
    auto& block = module.add<CrossDecoderLayer>(own, unit.name, config(), site);
    module.add_router(layer, block.router());
    module.forward = [&block](Streams in, const UnitPass& pass) -> Streams {
      const ForwardContext& encoder = context_of(pass, kEncoderSide);
      const EncoderMemory memory{.hidden = in[1].delta, .lengths = encoder.mask.key_lengths, .s = encoder.s};
      ForwardContext context = pass.context;
      if (in.size() > 2) context.mask.bias = in[2].delta;
      return {block.forward(std::move(in[0]), memory, context)};
    };
  }

  void make_head(UnitModule& unit, const LayerContext& context) {
    VocabularyWeight weight = table_weight(context);
    double init_std = embedding_std(config());
    if (!is_tied()) {
      weight.name = names_.head + ".weight";
      weight.pipeline_ranks.clear();
      weight.aliases.clear();
      init_std = config().init_method_std;
    }
    std::vector<std::string> bias;
    if (config().has_linear_bias() && is_tied()) bias.push_back(names_.head + ".bias");
    Parameter* tied = is_tied() ? table() : nullptr;
    auto& norm = unit.add<Norm>(context, names_.decoder_norm, config().hidden_size, config());
    auto& head = unit.add<LmHead>(context, weight, init_std, tied, config().final_logit_softcapping, bias);
    const double divisor = config().scale_decoder_outputs ? std::sqrt(static_cast<double>(config().hidden_size)) : 1;
    unit.forward = [&norm, &head, divisor](Streams in, const UnitPass& pass) -> Streams {
      at::Tensor hidden = norm.forward(in[0]);
      if (divisor != 1) hidden = hidden / divisor;
      *pass.output = lm_output(head, hidden, *pass.input, pass.head);
      return {};
    };
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
