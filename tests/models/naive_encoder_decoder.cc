// See naive_encoder_decoder.h.
#include "models/naive_encoder_decoder.h"

#include <algorithm>
#include <cmath>

namespace megalith::test {

namespace {

struct NaiveStack {
  const ModelConfig& config;
  const TensorMap& weights;
  std::string name;  // "encoder"

  const at::Tensor& weight(const std::string& below) const { return weights.at(name + "." + below); }

  at::Tensor norm(const at::Tensor& x, const std::string& below) const {
    if (config.normalization == Normalization::kLayerNorm) {
      const at::Tensor centred = x - x.mean(-1, true);
      return centred / (centred.square().mean(-1, true) + config.norm_epsilon).sqrt() * weight(below + ".weight") +
             weight(below + ".bias");
    }
    return x / (x.square().mean(-1, true) + config.norm_epsilon).sqrt() * weight(below + ".weight");
  }

  // With its bias, where it has one.
  at::Tensor linear(const at::Tensor& x, const std::string& below) const {
    const at::Tensor y = at::matmul(x, weight(below + ".weight").t());
    const auto bias = weights.find(name + "." + below + ".bias");
    return bias == weights.end() ? y : y + bias->second;
  }

  // (b, s, n d) -> (b, n, s, d)
  at::Tensor heads(const at::Tensor& x, int64_t n) const {
    return x.view({x.size(0), x.size(1), n, config.head_dim()}).transpose(1, 2);
  }

  // mask (b, 1, q, k) bool: what may be seen; bias (n, q, k), or undefined.
  at::Tensor attention(const std::string& below, const at::Tensor& x, const at::Tensor& memory, const at::Tensor& mask,
                       const at::Tensor& bias) const {
    const int64_t n = config.num_attention_heads, g = config.num_kv_heads();
    const at::Tensor q = heads(linear(x, below + ".q"), n);
    const at::Tensor k = heads(linear(memory, below + ".k"), g).repeat_interleave(n / g, 1);
    const at::Tensor v = heads(linear(memory, below + ".v"), g).repeat_interleave(n / g, 1);
    const double scale = 1 / std::sqrt(config.query_pre_attn_scalar.value_or(static_cast<double>(config.head_dim())));
    at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
    if (bias.defined()) scores = scores + bias;
    const at::Tensor p = scores.masked_fill(~mask, -1e300).softmax(-1);
    const at::Tensor out = at::matmul(p, v).transpose(1, 2).flatten(2);
    return linear(out, below + ".o");
  }

  // The k largest of the router's logits choose experts, and their softmax weighs what those give.
  at::Tensor mixture(const std::string& below, const at::Tensor& x) const {
    const at::Tensor logits = linear(x, below + ".router");
    const at::Tensor chosen = std::get<1>(logits.topk(config.moe_router_topk, -1));
    const at::Tensor is_chosen = at::zeros_like(logits).scatter(-1, chosen, 1).to(at::kBool);
    const at::Tensor shares = logits.masked_fill(~is_chosen, -1e300).softmax(-1);
    at::Tensor sum = at::zeros_like(x);
    for (int64_t expert = 0; expert < *config.num_experts; ++expert) {
      sum = sum + shares.select(-1, expert).unsqueeze(-1) * mlp(fmt::format("{}.experts.{}", below, expert), x);
    }
    return sum;
  }

  at::Tensor feed_forward(const std::string& below, const at::Tensor& x, int64_t layer) const {
    return config.has_experts_at(layer) ? mixture(below, x) : mlp(below, x);
  }

  at::Tensor mlp(const std::string& below, const at::Tensor& x) const {
    if (!config.geglu) {
      const at::Tensor up = linear(x, below + ".wi");
      return linear(config.relu ? at::relu(up) : at::gelu(up, config.bias_gelu_fusion ? "tanh" : "none"),
                    below + ".wo");
    }
    return linear(at::gelu(linear(x, below + ".wi_0"), "tanh") * linear(x, below + ".wi_1"), below + ".wo");
  }

  // Each distance by itself, in the words of the paper.
  int64_t bucket(int64_t relative) const {
    int64_t buckets = config.relative_attention_num_buckets, first = 0;
    int64_t distance = -relative;
    if (name == "encoder") {
      buckets /= 2;
      if (relative > 0) first = buckets;
      distance = std::abs(relative);
    }
    distance = std::max<int64_t>(distance, 0);
    const int64_t exact = buckets / 2;
    if (distance < exact) return first + distance;
    const double share =
        std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
        std::log(static_cast<double>(config.relative_attention_max_distance) / static_cast<double>(exact));
    const auto far = static_cast<int64_t>(share * static_cast<double>(buckets - exact) + 1e-9);
    return first + std::min(exact + far, buckets - 1);
  }

  at::Tensor bias(int64_t s) const {
    if (config.position_embedding() != PositionEmbedding::kRelative) return {};
    const at::Tensor& table = weight("block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    std::vector<at::Tensor> rows;
    for (int64_t query = 0; query < s; ++query) {
      for (int64_t key = 0; key < s; ++key) rows.push_back(table[bucket(key - query)]);
    }
    return at::stack(rows).t().reshape({-1, s, s});
  }
};

// (b, s, h): the tokens' rows, and those of their positions.
at::Tensor embedded(const TensorMap& weights, const at::Tensor& tokens) {
  const at::Tensor x = at::embedding(weights.at("shared.weight"), tokens);
  const auto table = weights.find("shared_position_embeddings.weight");
  return table == weights.end() ? x : x + table->second.narrow(0, 0, tokens.size(1));
}

// (b, 1, 1, k)
at::Tensor seen_keys(const at::Tensor& lengths, int64_t k) {
  return (at::arange(k, at::kLong).unsqueeze(0) < lengths.unsqueeze(1)).view({-1, 1, 1, k});
}

}  // namespace

at::Tensor naive_memory(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair) {
  const NaiveStack stack{config, weights, "encoder"};
  const int64_t s = pair.encoder_tokens.size(1);
  at::Tensor x = embedded(weights, pair.encoder_tokens);
  const at::Tensor mask = seen_keys(pair.encoder_lengths, s), bias = stack.bias(s);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string block = fmt::format("block.{}.layer.", layer);
    const at::Tensor normed = stack.norm(x, block + "0.layer_norm");
    x = x + stack.attention(block + "0.SelfAttention", normed, normed, mask, bias);
    x = x + stack.feed_forward(block + "1.DenseReluDense", stack.norm(x, block + "1.layer_norm"), layer);
  }
  return stack.norm(x, "final_layer_norm");
}

at::Tensor naive_pair_logits(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair) {
  const at::Tensor memory = naive_memory(config, weights, pair);
  const NaiveStack stack{config, weights, "decoder"};
  const int64_t s = pair.tokens.size(1);
  at::Tensor x = embedded(weights, pair.tokens);
  const at::Tensor causal = at::ones({s, s}, at::kBool).tril() & seen_keys(pair.lengths, s), bias = stack.bias(s);
  const at::Tensor cross = seen_keys(pair.encoder_lengths, memory.size(1));
  for (int64_t layer = 0; layer < config.num_decoder_layers(); ++layer) {
    const std::string block = fmt::format("block.{}.layer.", layer);
    const at::Tensor normed = stack.norm(x, block + "0.layer_norm");
    x = x + stack.attention(block + "0.SelfAttention", normed, normed, causal, bias);
    x = x + stack.attention(block + "1.EncDecAttention", stack.norm(x, block + "1.layer_norm"), memory, cross, {});
    x = x + stack.feed_forward(block + "2.DenseReluDense", stack.norm(x, block + "2.layer_norm"),
                               config.num_layers + layer);
  }
  x = stack.norm(x, "final_layer_norm");
  if (config.scale_decoder_outputs) x = x * std::pow(static_cast<double>(config.hidden_size), -0.5);
  const bool is_tied = !config.untie_embeddings_and_output_weights;
  const at::Tensor logits = at::matmul(x, weights.at(is_tied ? "shared.weight" : "lm_head.weight").t());
  const auto output_bias = weights.find("lm_head.bias");
  return output_bias == weights.end() ? logits : logits + output_bias->second;
}

TensorMap naive_pair_gradients(const ModelConfig& config, const TensorMap& weights, const NaivePair& pair,
                               double* loss_sum) {
  TensorMap leaves, gradients;
  for (const auto& [name, tensor] : weights) leaves[name] = tensor.detach().clone().requires_grad_(true);
  const at::Tensor logits = naive_pair_logits(config, leaves, pair);
  const at::Tensor losses =
      -logits.log_softmax(-1).gather(-1, pair.labels.unsqueeze(-1)).squeeze(-1) * pair.loss_weights;
  if (loss_sum != nullptr) *loss_sum = losses.sum().item<double>();
  losses.sum().backward();
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad();
  return gradients;
}

NaivePair tiny_pair(const ModelConfig& config, int64_t b, int64_t encoder_s, int64_t s) {
  NaivePair pair;
  const auto draw = [&](uint64_t tensor, int64_t i) { return (unit_value(tensor, static_cast<uint64_t>(i)) + 1) / 2; };
  const auto ids = [&](uint64_t tensor, int64_t length) {
    const at::Tensor all = at::empty({b, length}, at::kLong);
    for (int64_t i = 0; i < b * length; ++i) {
      all.view(-1)[i] = static_cast<int64_t>(draw(tensor, i) * static_cast<double>(*config.vocab_size));
    }
    return all;
  };
  pair.encoder_tokens = ids(200, encoder_s);
  pair.tokens = ids(201, s);
  pair.labels = ids(202, s);
  pair.encoder_lengths = encoder_s - at::arange(b, at::kLong) % encoder_s;
  pair.lengths = s - (at::arange(b, at::kLong) % s);
  pair.loss_weights = at::empty({b, s}, at::kDouble);
  for (int64_t i = 0; i < b * s; ++i) {
    const bool is_padding = i % s >= pair.lengths[i / s].item<int64_t>();
    pair.loss_weights.view(-1)[i] = is_padding ? 0.0 : 0.25 * std::ceil(4 * draw(203, i));
  }
  return pair;
}

ModelInput pair_model_input(const NaivePair& pair) {
  ModelInput input{.tokens = pair.tokens, .labels = pair.labels, .loss_weights = pair.loss_weights.to(at::kFloat)};
  const int64_t b = pair.tokens.size(0), encoder_s = pair.encoder_tokens.size(1);
  input.context.b = b;
  input.context.s = pair.tokens.size(1);
  input.context.encoder_s = encoder_s;
  input.context.mask.key_lengths = pair.lengths;
  input.context.row_ids = at::arange(pair.tokens.numel(), at::kLong).view(pair.tokens.sizes());
  input.more.set("encoder_tokens", pair.encoder_tokens);
  input.more.set("encoder_key_lengths", pair.encoder_lengths);
  input.more.set("encoder_row_ids", at::arange(b * encoder_s, at::kLong).view({b, encoder_s}) + 1000);
  return input;
}

}  // namespace megalith::test
