#include "models/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"

namespace megalith {

namespace {

DecoderLayerOptions layer_options(const ModelConfig& config, int64_t layer) {
  // Output projections start smaller, so that the stream's variance does not grow with depth (Radford et al. 2019).
  const double output_std = config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  return {.attention = {.hidden = config.hidden_size,
                        .num_heads = config.num_attention_heads,
                        .num_kv_heads = config.num_kv_heads(),
                        .head_dim = config.head_dim(),
                        .has_qkv_bias = config.add_qkv_bias,
                        .dropout = config.attention_dropout,
                        .is_rotary_interleaved = config.rotary_interleaved,
                        .init_std = config.init_method_std,
                        .output_init_std = output_std,
                        .layer = layer},
          .mlp = {.hidden = config.hidden_size,
                  .ffn = config.ffn_size(),
                  .init_std = config.init_method_std,
                  .output_init_std = output_std},
          .norm_eps = config.norm_epsilon,
          .hidden_dropout = config.hidden_dropout};
}

RotaryOptions rotary_options(const ModelConfig& config) {
  RotaryOptions options{.dim = static_cast<int64_t>(static_cast<double>(config.head_dim()) * config.rotary_percent),
                        .base = config.rotary_base,
                        .is_interleaved = config.rotary_interleaved};
  if (config.use_rope_scaling) {
    options.scaling = RopeScaling{
        .factor = config.rope_scaling_factor,
        .low_freq_factor = config.rope_scaling_low_freq_factor,
        .high_freq_factor = config.rope_scaling_high_freq_factor,
        .original_max_position_embeddings = config.rope_scaling_original_max_position_embeddings,
    };
  }
  return options;
}

const ModelConfig& checked(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_config(config);
  if (!config.vocab_size) {
    errors.emplace_back("vocab_size is not set", "set vocab_size, or name a tokenizer whose vocabulary gives it");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const LayerContext& context, const StageRange& stage)
    : Model(stage),
      config_(checked(config)),
      dtype_(context.dtype),
      token_split_(context.is_sequence_parallel ? context.groups->tp->size() : 1) {
  MEGALITH_CHECK(0 <= stage.first_layer && stage.first_layer + stage.num_layers <= config.num_layers,
                 "layers {} to {} of {}", stage.first_layer, stage.first_layer + stage.num_layers, config.num_layers);
  std::vector<UserError> layout_errors = check_model_layout(config, context.groups->tp->size());
  if (!layout_errors.empty()) throw UserErrors(std::move(layout_errors));
  const at::Device buffer_device = context.buffer_device.value_or(context.device);
  if (buffer_device != at::kMeta) {
    inverse_frequencies_ = rotary_inverse_frequencies(rotary_options(config)).to(buffer_device);
  }

  const bool is_tied = !config.untie_embeddings_and_output_weights;
  VocabularyWeight table{.name = "model.embed_tokens.weight",
                         .vocab = *config.vocab_size,
                         .padded_vocab = config.padded_vocab_size(context.groups->tp->size()),
                         .hidden = config.hidden_size,
                         .is_shared = is_tied && stage.is_embedding_shared};
  if (is_tied) table.aliases = {"lm_head.weight"};
  const double embedding_std = config.embedding_init_method_std.value_or(config.init_method_std);
  if (stage.has_embedding) {
    embedding_ = std::make_unique<VocabParallelEmbedding>(context, table, embedding_std);
    register_module(*embedding_);
    embedding_dropout_.emplace(context, "model.embed_tokens", config.hidden_dropout);
  }
  for (int64_t i = 0; i < stage.num_layers; ++i) {
    const int64_t layer = stage.first_layer + i;
    layers_.push_back(
        std::make_unique<DecoderLayer>(context, fmt::format("model.layers.{}", layer), layer_options(config, layer)));
    register_module(*layers_.back());
  }
  if (stage.has_head) {
    final_norm_ = std::make_unique<RmsNorm>(context, "model.norm", config.hidden_size, config.norm_epsilon);
    register_module(*final_norm_);
    // A tied head on a rank without the embedding owns a second copy of the same canonical tensor.
    Parameter* tied = is_tied && embedding_ ? &embedding_->weight() : is_tied ? stage.tied_embedding : nullptr;
    VocabularyWeight weight = table;
    if (!is_tied) weight.name = "lm_head.weight";
    head_ = std::make_unique<LmHead>(context, weight, is_tied ? embedding_std : config.init_method_std, tied);
    register_module(*head_);
  }

  blocks_ = make_blocks();
}

ModelOutput Transformer::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  const ForwardContext& context = input.context;
  if (context.b * context.s % token_split_ != 0) {
    throw UserError(fmt::format("sequence_parallel splits {} tokens ({} sequences of {}) over {} ranks",
                                context.b * context.s, context.b, context.s, token_split_),
                    fmt::format("make micro_batch_size times seq_length a multiple of {}", token_split_));
  }
  const RotaryAngles angles = rotary_angles(context);
  auto block = blocks_.begin();
  ResidualStream stream;
  if (embedding_) {
    stream.delta = run_block(runner(), *block++, {}, [&](const auto&) -> std::vector<at::Tensor> {
      return {embedding_dropout_->forward(embed(input), context)};
    })[0];
  } else {
    stream.delta = boundary.at("hidden");
  }
  for (auto layer = layers_.begin(); layer != layers_.end();) {
    std::vector<DecoderLayer*> layers;
    for (size_t i = 0; i < block->modules.size(); ++i) layers.push_back((layer++)->get());
    // By value: a runner may call it again after this pass.
    const BlockBody body = [layers, context, angles](const std::vector<at::Tensor>& inputs) {
      ResidualStream through{inputs[0], inputs[1]};
      for (DecoderLayer* layer : layers) through = layer->forward(std::move(through), context, angles);
      return std::vector<at::Tensor>{through.delta, through.residual};
    };
    const std::vector<at::Tensor> outputs = run_block(runner(), *block++, {stream.delta, stream.residual}, body);
    stream = {outputs[0], outputs[1]};
  }
  if (head_) {
    ModelOutput output;
    // The first entry is differentiable, what else the head tells is not.
    const std::vector<at::Tensor> objectives =
        run_block(runner(), *block, {stream.delta, stream.residual}, [&](const std::vector<at::Tensor>& inputs) {
          output = head_output(input, {inputs[0], inputs[1]}, head);
          std::vector<at::Tensor> terms;
          for (const LossTerm& term : output.terms) terms.push_back(term.objective);
          return terms;
        });
    for (size_t i = 0; i < objectives.size(); ++i) output.terms[i].objective = objectives[i];
    return output;
  }
  ModelOutput output;
  output.boundary.set("hidden", stream.sum());
  return output;
}

std::vector<TensorSpec> Transformer::boundary(int64_t b, int64_t s) const {
  return {{"hidden", {div_exact(b * s, token_split_), config_.hidden_size}, dtype_}};
}

std::vector<Block> Transformer::make_blocks() const {
  std::vector<Block> all;
  const auto add = [&](Block block) {
    block.index = static_cast<int64_t>(all.size());
    all.push_back(std::move(block));
  };
  if (embedding_) add({.name = "embedding", .modules = {embedding_.get()}, .is_layer = false});
  const auto step = static_cast<size_t>(stage().layers_per_block);
  MEGALITH_CHECK(step > 0, "blocks of {} layers", step);
  for (size_t first = 0; first < layers_.size(); first += step) {
    Block block{.name = layers_[first]->name(), .layer = stage().first_layer + static_cast<int64_t>(first)};
    for (size_t i = first; i < std::min(first + step, layers_.size()); ++i) block.modules.push_back(layers_[i].get());
    block.adds_inputs = first > 0;  // what comes from the embedding or another stage is one tensor
    add(std::move(block));
  }
  if (head_) add({.name = "head", .modules = {final_norm_.get(), head_.get()}, .is_layer = false});
  return all;
}

std::vector<BlockCost> Transformer::block_costs(const CostShape& shape) const {
  std::vector<BlockCost> costs;
  const int64_t stream_bytes = shape.b * shape.s / token_split_ * config_.hidden_size * shape.activation_bytes;
  for (const Block& block : blocks_) {
    LayerCost cost;
    for (const Module* module : block.modules) cost += module->cost(shape);
    costs.push_back({block, cost, block.is_layer ? stream_bytes : 0});
  }
  return costs;
}

at::Tensor Transformer::embed(const ModelInput& input) const {
  const at::Tensor tokens = input.tokens.reshape({-1});
  MEGALITH_CHECK(tokens.size(0) == input.context.b * input.context.s, "{} tokens, but b {} and s {}", tokens.size(0),
                 input.context.b, input.context.s);
  // A look, where it costs nothing: a GPU would have to wait for the answer.
  if (tokens.is_cpu() && tokens.numel() > 0) {
    const auto [smallest, largest] = at::aminmax(tokens);
    if (smallest.item<int64_t>() < 0 || largest.item<int64_t>() >= *config_.vocab_size) {
      const int64_t bad = smallest.item<int64_t>() < 0 ? smallest.item<int64_t>() : largest.item<int64_t>();
      throw UserError(fmt::format("token id {} in the data, but vocab_size is {}", bad, *config_.vocab_size),
                      "prepare the data with the tokenizer of this model, or set vocab_size to its vocabulary");
    }
  }
  return embedding_->forward(tokens);
}

RotaryAngles Transformer::rotary_angles(const ForwardContext& forward) const {
  at::Tensor positions = forward.position_ids;
  if (!positions.defined()) {
    const int64_t first = forward.cache == nullptr ? 0 : forward.cache->length;
    positions = at::arange(first, first + forward.s, inverse_frequencies_.options().dtype(at::kLong)).unsqueeze(0);
  }
  return compute_rotary_angles(positions, inverse_frequencies_, dtype_);
}

ModelOutput Transformer::head_output(const ModelInput& input, ResidualStream stream, HeadOutput head) const {
  const at::Tensor hidden = final_norm_->forward(stream);
  const int64_t b = input.context.b, s = input.context.s;
  ModelOutput output;
  switch (head) {
    case HeadOutput::kLoss: {
      LmHead::Loss loss =
          head_->loss(hidden, input.labels.reshape({-1}), input.loss_weights.reshape({-1}), input.scales);
      output.token_losses = loss.token_losses.view({b, s});
      output.terms.push_back(std::move(loss.term));
      break;
    }
    case HeadOutput::kTokenLosses: {
      const at::NoGradGuard no_grad;
      const at::Tensor weights =
          input.loss_weights.defined() ? input.loss_weights : at::ones({b, s}, hidden.options().dtype(at::kFloat));
      output.token_losses =
          head_->loss(hidden, input.labels.reshape({-1}), weights.reshape({-1}), {}).token_losses.view({b, s});
      break;
    }
    case HeadOutput::kLogits:
      output.logits = head_->logits(hidden).view({b, s, -1});
      break;
    case HeadOutput::kLastLogits:
      output.logits =
          head_->logits(hidden, at::arange(s - 1, b * s, s, hidden.options().dtype(at::kLong))).view({b, 1, -1});
      break;
  }
  return output;
}

}  // namespace megalith
