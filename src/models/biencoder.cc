// See biencoder.h.
#include "models/biencoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "models/bert_config.h"
#include "models/families.h"

namespace megalith {

namespace {

constexpr const char *kSharedTower = "shared_model", *kQueryTower = "query_model", *kContextTower = "context_model";
constexpr const char* kProjection = "projection_enc";

std::vector<std::string> tower_names(const ModelConfig& config) {
  if (config.biencoder_shared_query_context_model) return {kSharedTower};
  return {kQueryTower, kContextTower};
}

// What a tower gives.
std::string vector_name(const std::string& tower) { return tower + " vector"; }

// Where a BERT's file has what is called so here: query_model.encoder.ln.weight -> bert.encoder.ln.weight, encoder.…
std::vector<std::string> names_in_bert(const std::string& name) {
  const std::string there = "bert" + name.substr(name.find('.'));
  std::vector<std::string> names = bert::other_names(there);
  names.insert(names.begin(), there);
  return names;
}

at::Tensor find_more(const ModelInput& input, std::string_view name) {
  const at::Tensor* tensor = input.more.find(name);
  return tensor == nullptr ? at::Tensor() : *tensor;
}

ForwardContext query_context(const ModelInput& input, const at::Tensor& tokens) {
  ForwardContext context;
  context.b = tokens.size(0);
  context.s = tokens.size(1);
  context.row_ids = find_more(input, "query_row_ids");
  context.mask.key_lengths = find_more(input, "query_key_lengths");
  context.is_training = input.context.is_training;
  return context;
}

at::Tensor lengths_of(const ForwardContext& context, const at::Tensor& tokens) {
  const at::Tensor& lengths = context.mask.key_lengths;
  return lengths.defined() ? lengths : at::full({context.b}, context.s, tokens.options());
}

// The rows of both behind one another.
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
      units.push_back({.kind = kLayerUnit,
                       .name = fmt::format("{}.{}", names.layers, layer),
                       .number = layer,
                       .letter = UnitLetter::kLayer,
                       .layers_worth = 1,
                       .reads = hidden,
                       .gives = hidden});
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

Biencoder::Biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
    : Model(part), config_(config), dtype_(context.dtype) {
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  if (auto errors = check_biencoder_ranks({.tp = sizes.tp, .cp = sizes.cp, .pp = sizes.pp}); !errors.empty()) {
    throw UserErrors(std::move(errors));
  }
  MEGALITH_CHECK(part.range == (UnitRange{0, std::ssize(part.units)}), "a part of a biencoder");
  int64_t first_unit = 0;
  for (const std::string& name : tower_names(config)) {
    add_tower(name, first_unit, context);
    first_unit += config.num_layers + 2;
  }
  const double divisor = config.retriever_score_scaling ? std::sqrt(static_cast<double>(config.hidden_size)) : 1;
  head_ = std::make_unique<RetrievalHead>(context,
                                          RetrievalHead::Options{.vector_size = config.vector_size(),
                                                                 .score_divisor = divisor,
                                                                 .top_ks = config.retriever_report_topk_accuracies});
  register_module(*head_);
  blocks_.push_back({.name = "head", .index = std::ssize(blocks_), .modules = {head_.get()}, .is_layer = false});
}

void Biencoder::add_tower(const std::string& name, int64_t first_unit, const LayerContext& context) {
  const TransformerNames names = bert::megatron_names(name);
  ModelPart own = part();
  own.range = {first_unit, config_.num_layers + 1};
  own.blocks_before = std::ssize(blocks_);
  own.layers_before = std::ssize(towers_) * config_.num_layers;
  Tower& tower = towers_.emplace_back();
  tower.encoder = std::make_unique<Transformer>(config_, names, context, own);
  register_module(*tower.encoder);
  blocks_.insert(blocks_.end(), tower.encoder->blocks().begin(), tower.encoder->blocks().end());
  Block vector{.name = vector_name(name), .index = std::ssize(blocks_), .is_layer = false};
  if (!config_.norms_sums()) {
    tower.norm = std::make_unique<Norm>(context, names.final_norm, config_.hidden_size, config_);
    register_module(*tower.norm);
    vector.modules.push_back(tower.norm.get());
  }
  for (const Module* module : {static_cast<Module*>(tower.encoder.get()), static_cast<Module*>(tower.norm.get())}) {
    if (module == nullptr) continue;
    module->for_each_parameter([](Parameter& parameter) {
      if (!parameter.options().is_adapter) parameter.add_aliases(names_in_bert);
    });
  }
  if (config_.biencoder_projection_dim > 0) {
    LayerContext plain = context;
    plain.recipe = nullptr;  // one token of a sequence is no work that eight bits would speed up
    tower.projection = std::make_unique<Linear>(
        plain, fmt::format("{}.{}", name, kProjection), config_.hidden_size, config_.biencoder_projection_dim,
        LinearOptions{.role = LinearRole::kReplicated, .has_bias = true, .init_std = config_.init_method_std});
    register_module(*tower.projection);
    vector.modules.push_back(tower.projection.get());
  }
  tower.vector_block = blocks_.size();
  blocks_.push_back(std::move(vector));
}

at::Tensor Biencoder::encoded(Tower& tower, const at::Tensor& tokens, const ForwardContext& context) {
  tower.encoder->set_runner(runner());
  // Another tower's vector passes by.
  Bundle boundary;
  for (const std::string& name : tower_names(config_)) boundary.set(vector_name(name), {});
  const ModelOutput output =
      tower.encoder->forward({.tokens = tokens, .labels = {}, .loss_weights = {}, .context = context}, boundary, {});
  const BlockBody body = [norm = tower.norm.get(), projection = tower.projection.get(), b = context.b,
                          s = context.s](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    at::Tensor first = inputs[0].view({b, s, -1}).select(1, 0).contiguous();
    if (norm != nullptr) {
      ResidualStream stream{.delta = first, .residual = {}};
      first = norm->forward(stream);
    }
    return {projection == nullptr ? first : projection->forward(first)};
  };
  return run_block(runner(), blocks_[tower.vector_block], {output.boundary.at("hidden")}, body)[0];
}

at::Tensor Biencoder::vectors(Side side, const at::Tensor& tokens, const ForwardContext& context) {
  return encoded(side == Side::kQuery ? towers_.front() : towers_.back(), tokens, context);
}

Biencoder::Pair Biencoder::encoded(const ModelInput& input) {
  const at::Tensor queries = find_more(input, "query_tokens");
  if (!queries.defined()) {
    throw UserError("model_type biencoder got no questions beside its texts",
                    "this command or task is for models that read one sequence; a biencoder is trained by task ict");
  }
  const ForwardContext of_queries = query_context(input, queries);
  if (towers_.size() == 2) {
    const at::Tensor query_vectors = encoded(towers_[0], queries, of_queries);
    return {query_vectors, encoded(towers_[1], input.tokens, input.context)};
  }
  MEGALITH_CHECK(queries.sizes() == input.tokens.sizes(), "questions of {} tokens, texts of {}", queries.size(1),
                 input.tokens.size(1));
  const at::Tensor both = encoded(towers_[0], at::cat({queries, input.tokens}),
                                  joined(of_queries, queries, input.context, input.tokens));
  return {both.narrow(0, 0, of_queries.b), both.narrow(0, of_queries.b, input.context.b)};
}

ModelOutput Biencoder::forward(const ModelInput& input, const Bundle& /*boundary*/, HeadOutput head) {
  if (head != HeadOutput::kLoss) {
    throw UserError("model_type biencoder has no logits of tokens: it gives vectors", "train or evaluate it");
  }
  const Pair pair = encoded(input);
  ModelOutput output;
  const std::vector<at::Tensor> objectives = run_block(
      runner(), blocks_.back(), {pair.queries, pair.contexts}, [&](const std::vector<at::Tensor>& inputs) {
        RetrievalHead::Loss loss = head_->loss(inputs[0], inputs[1], input.scales(0));
        loss.term.name = input.terms.at(0).name;
        const at::Tensor objective = loss.term.objective;
        output.token_losses = loss.row_losses.unsqueeze(1);
        output.terms = std::move(loss.correct);
        output.terms.insert(output.terms.begin(), std::move(loss.term));
        return std::vector<at::Tensor>{objective};
      });
  output.terms.front().objective = objectives[0];
  return output;
}

std::vector<std::string> Biencoder::added_losses() const {
  std::vector<std::string> names;
  for (const int64_t k : config_.retriever_report_topk_accuracies) names.push_back(top_k_name(k));
  return names;
}

// A tower for both sides sees twice as many rows, and what is behind an encoder one token of each.
CostShape Biencoder::shape_of(const Module& child, const CostShape& shape) const {
  const int64_t rows = shape.b * (towers_.size() == 1 ? 2 : 1);
  for (const Tower& tower : towers_) {
    if (&child == tower.encoder.get()) return {.b = rows, .s = shape.s};
    if (&child == tower.norm.get() || &child == tower.projection.get()) return {.b = rows, .s = 1};
  }
  return shape;
}

std::unique_ptr<Model> build_biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return std::make_unique<Biencoder>(config, context, part);
}

extern const ModelFamily kBiencoder;
const ModelFamily kBiencoder = {.name = "biencoder",
                                .model_type = ModelType::kBiencoder,
                                .hf_model_type = "",
                                .hf_class = "",
                                .from_hf = nullptr,
                                .to_hf = nullptr,
                                .units = biencoder_units,
                                .build = build_biencoder};

}  // namespace megalith
