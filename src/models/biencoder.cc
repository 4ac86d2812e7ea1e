#include "models/biencoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "models/bert_config.h"
#include "models/families.h"
#include "models/transformer.h"
#include "nn/linear.h"
#include "nn/retrieval_head.h"

namespace megalith {

namespace {

constexpr const char *kSharedTower = "shared_model", *kQueryTower = "query_model", *kContextTower = "context_model";
constexpr const char* kProjection = "projection_enc";

std::vector<std::string> tower_names(const ModelConfig& config) {
  if (config.biencoder_shared_query_context_model) return {kSharedTower};
  return {kQueryTower, kContextTower};
}

std::string vector_name(const std::string& tower) { return tower + " vector"; }

// Names in a BERT's file: query_model.encoder.ln.weight -> bert.encoder.ln.weight, encoder.…
std::vector<std::string> names_in_bert(const std::string& name) {
  const std::string there = "bert" + name.substr(name.find('.'));
  std::vector<std::string> names = bert::other_names(there);
  names.insert(names.begin(), there);
  return names;
}

ForwardContext query_context(const ModelInput& input, const at::Tensor& tokens) {
  ForwardContext context;
  context.b = tokens.size(0);
  context.s = tokens.size(1);
  context.row_ids = found(input, input::kQueryRowIds);
  context.mask.key_lengths = found(input, input::kQueryKeyLengths);
  context.is_training = input.context.is_training;
  return context;
}

at::Tensor lengths_of(const ForwardContext& context, const at::Tensor& tokens) {
  const at::Tensor& lengths = context.mask.key_lengths;
  return lengths.defined() ? lengths : at::full({context.b}, context.s, tokens.options());
}

// The rows of `first`, then those of `second`.
ForwardContext joined(const ForwardContext& first, const at::Tensor& first_tokens, const ForwardContext& second,
                      const at::Tensor& second_tokens) {
  ForwardContext both;
  both.b = first.b + second.b;
  both.s = first.s;
  if (first.row_ids.defined() && second.row_ids.defined()) both.row_ids = at::cat({first.row_ids, second.row_ids});
  if (first.mask.key_lengths.defined() || second.mask.key_lengths.defined()) {
    both.mask.key_lengths = at::cat({lengths_of(first, first_tokens), lengths_of(second, second_tokens)});
  }
  both.is_training = second.is_training;
  return both;
}

}  // namespace

bool is_of_projection(const std::string& parameter) {
  return parameter.find(std::string(".") + kProjection + ".") != std::string::npos;
}

std::vector<Unit> biencoder_units(const ModelConfig& config) {
  const std::vector<std::string> hidden = {"hidden"};
  std::vector<Unit> units;
  std::vector<std::string> vectors;
  for (const std::string& tower : tower_names(config)) {
    const TransformerNames names = bert::megatron_names(tower);
    const UnitLetter letter = units.empty() ? UnitLetter::kEmbedding : UnitLetter::kNone;
    units.push_back({.kind = kEmbeddingUnit, .name = names.embedding, .letter = letter, .gives = hidden});
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      units.push_back(layer_unit(kLayerUnit, names.layers, layer, hidden, hidden));
    }
    units.back().stays_with_next = true;
    vectors.push_back(vector_name(tower));
    units.push_back({.kind = kVectorUnit,
                     .name = fmt::format("{}.{}", tower, kProjection),
                     .reads = hidden,
                     .gives = {vectors.back()}});
  }
  units.push_back({.kind = kRetrievalUnit, .name = kRetrievalUnit, .letter = UnitLetter::kHead, .reads = vectors});
  return units;
}

std::vector<UserError> check_biencoder_ranks(const SampleRanks& ranks) {
  std::vector<UserError> errors;
  const std::pair<const char*, int64_t> axes[] = {{"tensor_model_parallel_size", ranks.tp},
                                                  {"pipeline_model_parallel_size", ranks.pp},
                                                  {"context_parallel_size", ranks.cp}};
  for (const auto& [name, size] : axes) {
    if (size <= 1) continue;
    errors.emplace_back(
        fmt::format("{} is {}, and model_type biencoder is spread over data-parallel ranks only", name, size),
        fmt::format("set {} to 1; use_distributed_optimizer and use_torch_fsdp2 divide its memory", name));
  }
  return errors;
}

namespace {

struct BiencoderPass : TextPass {
  int64_t num_queries = 0;          // leading rows that are questions, in a shared tower
  std::optional<std::string> only;  // the only tower to run, without the loss
};

// Aliases from BERT files.
void add_names_in_bert(const Module& module) {
  module.for_each_parameter([](Parameter& parameter) {
    if (!parameter.options().is_adapter) parameter.add_aliases(names_in_bert);
  });
}

void make_vector(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                 const std::string& projection_name, const LayerContext& context, size_t side) {
  Norm* norm = add_final_norm(unit, config, names, context);
  if (norm != nullptr) add_names_in_bert(*norm);
  Linear* projection = nullptr;
  if (config.biencoder_projection_dim > 0) {
    LayerContext plain = context;
    plain.recipe = nullptr;  // eight bits would not speed up one token of a sequence
    const LinearOptions options{.role = LinearRole::kReplicated, .has_bias = true, .init_std = config.init_method_std};
    const int64_t width = config.biencoder_projection_dim;
    projection = &unit.add<Linear>(plain, projection_name, config.hidden_size, width, options);
  }
  unit.forward = [norm, projection, side](Streams in, const UnitPass& pass) -> Streams {
    const ForwardContext& context = pass.as<BiencoderPass>().sides[side].context;
    const at::Tensor first = in[0].sum().view({context.b, context.s, -1}).select(1, 0).contiguous();
    const at::Tensor normed = normed_end(norm, {first, {}});
    return {{projection != nullptr ? projection->forward(normed) : normed, {}}};
  };
}

void make_retrieval(UnitModule& unit, const ModelConfig& config, const LayerContext& context) {
  const double divisor = config.retriever_score_scaling ? std::sqrt(static_cast<double>(config.hidden_size)) : 1;
  const RetrievalHead::Options options{.vector_size = config.vector_size(),
                                     .score_divisor = divisor,
                                     .top_ks = config.retriever_report_topk_accuracies};
  auto& head = unit.add<RetrievalHead>(context, options);
  unit.forward = [&head](const Streams& in, const UnitPass& pass) -> Streams {
    at::Tensor queries = in[0].delta, contexts = in.back().delta;
    if (in.size() == 1) {
      const int64_t count = pass.as<BiencoderPass>().num_queries;
      queries = contexts.narrow(0, 0, count);
      contexts = contexts.narrow(0, count, contexts.size(0) - count);
    }
    RetrievalHead::Loss loss = head.loss(queries, contexts, pass.input->scales(0));
    loss.term.name = pass.input->terms.at(0).name;
    pass.output->token_losses = loss.row_losses.unsqueeze(1);
    pass.output->terms = std::move(loss.correct);
    pass.output->terms.insert(pass.output->terms.begin(), std::move(loss.term));
    return {};
  };
}

std::vector<UserError> check_ranks_of(const LayerContext& context) {
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  return check_biencoder_ranks({.tp = sizes.tp, .cp = sizes.cp, .pp = sizes.pp});
}

}  // namespace

Biencoder::Biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
    : UnitChunk(config, context, part, /*is_text=*/true, check_ranks_of(context)),
      towers_(tower_names(config)),
      viewer_(std::make_shared<LayerViewer>(config, context)) {
  MEGALITH_CHECK(part.range == (UnitRange{0, std::ssize(part.units)}), "a part of a biencoder");
  make_units(context);
}

void Biencoder::make_unit(const Unit& unit, const LayerContext& context, int64_t /*layer*/) {
  if (unit.kind == kRetrievalUnit) return make_retrieval(add_block(unit, "head"), config(), context);
  const size_t side = unit.name.starts_with(towers_.back() + ".") ? towers_.size() - 1 : 0;
  const TransformerNames names = bert::megatron_names(towers_[side]);
  const bool is_vector = unit.kind == kVectorUnit, is_layer = unit.kind == kLayerUnit;
  const std::string block = is_vector ? vector_name(towers_[side]) : "embedding";
  UnitModule& module = is_layer ? add_layer(unit) : add_block(unit, block);
  if (is_vector) {
    make_vector(module, config(), names, unit.name, context, side);
  } else if (is_layer) {
    const LayerContext own = layer_context(context, unit.number, config().num_layers);
    make_text_layer(module, config(), names, own, unit.number, side);
  } else {
    MEGALITH_CHECK(unit.kind == kEmbeddingUnit, "a biencoder has no unit of kind {}", unit.kind);
    make_token_embedding(module, config(), names, context, part(), side);
  }
  if (!is_vector) add_names_in_bert(module);
  // A shared tower sees twice the rows; the vector unit reads only each first token.
  module.cost_shape = [rows = 3 - std::ssize(towers_), is_vector](const Module& /*part*/, CostShape shape) {
    shape.b *= rows;
    if (is_vector) shape.s = 1;
    return shape;
  };
}

TextSide Biencoder::side_of(const at::Tensor& tokens, ForwardContext context) const {
  context.mask.is_causal = config().is_causal();
  context.mask.softcap = config().attn_logit_softcapping;
  return {.tokens = tokens, .token_types = {}, .context = context, .views = viewer_->views(context)};
}

std::shared_ptr<UnitPass> Biencoder::make_pass(const ModelInput& input, const ForwardContext& context) const {
  const at::Tensor queries = found(input, input::kQueryTokens);
  if (!queries.defined()) {
    throw UserError("model_type biencoder got no questions beside its texts",
                    "this command or task is for models that read one sequence; a biencoder is trained by task ict");
  }
  auto pass = std::make_shared<BiencoderPass>();
  pass->context = context;
  pass->viewer = viewer_;
  const ForwardContext of_queries = query_context(input, queries);
  pass->num_queries = of_queries.b;
  if (towers_.size() == 2) {
    pass->sides = {side_of(queries, of_queries), side_of(input.tokens, context)};
  } else {
    MEGALITH_CHECK(queries.sizes() == input.tokens.sizes(), "questions of {} tokens, texts of {}", queries.size(1),
                   input.tokens.size(1));
    pass->sides = {side_of(at::cat({queries, input.tokens}), joined(of_queries, queries, context, input.tokens))};
  }
  return pass;
}

int64_t Biencoder::num_rows(const std::string& tensor, const ForwardContext& /*context*/) const {
  MEGALITH_CHECK(false, "{} of a biencoder travels nowhere", tensor);
}

bool Biencoder::skips(const Unit& unit, const UnitPass& pass) const {
  const std::optional<std::string>& only = pass.as<BiencoderPass>().only;
  return only && !unit.name.starts_with(*only + ".");
}

at::Tensor Biencoder::vectors(Side side, const at::Tensor& tokens, const ForwardContext& context) const {
  const size_t tower = side == Side::kQuery ? 0 : towers_.size() - 1;
  auto pass = std::make_shared<BiencoderPass>();
  pass->context = context;
  pass->viewer = viewer_;
  pass->only = towers_[tower];
  pass->sides.resize(towers_.size());
  pass->sides[tower] = side_of(tokens, context);
  return run(pass, {}).at(vector_name(towers_[tower]));
}

ModelOutput Biencoder::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  if (head != HeadOutput::kLoss) {
    throw UserError("model_type biencoder has no logits of tokens: it gives vectors", "train or evaluate it");
  }
  return UnitChunk::forward(input, boundary, head);
}

std::vector<std::string> Biencoder::added_losses() const {
  std::vector<std::string> names;
  for (const int64_t k : config().retriever_report_topk_accuracies) names.push_back(top_k_name(k));
  return names;
}

std::unique_ptr<Model> build_biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return std::make_unique<Biencoder>(config, context, part);
}

extern const ModelFamily kBiencoder = {.name = "biencoder",
                                       .model_type = ModelType::kBiencoder,
                                       .units = biencoder_units,
                                       .build = build_biencoder};

}  // namespace megalith
