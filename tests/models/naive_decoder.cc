#include "models/naive_decoder.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "nn/rotary_embedding.h"
#include "ops/attention/attention.h"

namespace megalith::test {

namespace {

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

// mask[row, column] = 0 or 1 / (1 - p); words are picked by the row's id and the column.
at::Tensor dropout_factors(const at::Tensor& row_ids, int64_t columns, double p, uint64_t key) {
  const at::Tensor rows = row_ids.flatten().contiguous();
  at::Tensor factors = at::empty({rows.size(0), columns}, at::kDouble);
  for (int64_t r = 0; r < rows.size(0); ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double u = uniform_at(key, static_cast<uint64_t>(c), static_cast<uint64_t>(rows[r].item<int64_t>()));
      factors[r][c] = u >= p ? 1 / (1 - p) : 0.0;
    }
  }
  return factors;
}

at::Tensor hidden_dropout(const at::Tensor& x, const ModelConfig& config, const NaiveInput& input,
                          const std::string& name) {
  if (config.hidden_dropout == 0 || !input.is_training) return x;
  const at::Tensor factors =
      dropout_factors(input.row_ids, x.size(-1), config.hidden_dropout, make_philox_key(input.seed, "dropout." + name));
  return x * factors.view(x.sizes()).to(x.scalar_type());
}

// (b, s, n, s): what each attention weight is multiplied with. Taken from the operator, by attending to unit vectors
// with equal scores; that it drops by global position is the operator's own test.
at::Tensor attention_dropout_factors(const NaiveInput& input, int64_t n, double p, uint64_t key) {
  const int64_t b = input.tokens.size(0), s = input.tokens.size(1);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor q = at::zeros({b, s, n, 2}, options), k = at::zeros({b, s, 1, 2}, options);
  const at::Tensor v = at::eye(s, options).view({1, s, 1, s}).expand({b, s, 1, s}).contiguous();
  ops::AttentionMask mask;
  mask.is_causal = false;
  return std::get<0>(ops::attention_forward(q, k, v, 1, mask, {.p = p, .key = key, .row_ids = input.row_ids},
                                            Kernels::kReference)) *
         static_cast<double>(s);
}

// (b, s, heads, d), pairs (i, i + r/2).
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = cos.size(-1);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor c = cos.unsqueeze(2), s = sin.unsqueeze(2);
  return at::cat({a * c - b * s, b * c + a * s, x.narrow(-1, 2 * half, x.size(-1) - 2 * half)}, -1);
}

// State that all layers of one pass share.
class NaiveDecoder {
 public:
  NaiveDecoder(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input)
      : config_(config), weights_(weights), input_(input), table_(weights.at("model.embed_tokens.weight")) {
    const int64_t b = input.tokens.size(0), s = input.tokens.size(1);
    at::Tensor allowed = at::ones({s, s}, at::kBool).tril().unsqueeze(0).expand({b, s, s});
    if (input.documents.defined()) {
      allowed = allowed.logical_and(input.documents.unsqueeze(2) == input.documents.unsqueeze(1));
    }
    whole_ = {allowed, angles_of(config)};
    windowed_ = {allowed.logical_and(at::ones({s, s}, at::kBool).triu(1 - config.attention_window())), whole_.angles};
    if (!config.rotary_base_local) return;
    windowed_.angles = angles_of(config.local(*config.rotary_base_local));
  }

  at::Tensor embed(const at::Tensor& tokens) const {
    const at::Tensor x = table_.index({tokens});
    return config_.scale_embeddings ? x * std::sqrt(static_cast<double>(config_.hidden_size)) : x;
  }
  at::Tensor norm_of(const at::Tensor& x, const std::string& name) const {
    const at::Tensor& weight = w(name + ".weight");
    return norm(x, config_.apply_layernorm_1p ? weight + 1 : weight, config_.norm_epsilon);
  }
  at::Tensor capped(const at::Tensor& x, double cap) const { return cap > 0 ? cap * at::tanh(x / cap) : x; }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = at::matmul(x, w(name + ".weight").t());
    const auto bias = weights_.find(name + ".bias");
    return bias == weights_.end() ? y : y + bias->second;
  }
  at::Tensor logits(const at::Tensor& hidden) const {
    const at::Tensor& head = config_.untie_embeddings_and_output_weights ? w("lm_head.weight") : table_;
    return capped(at::matmul(hidden, head.t()), config_.final_logit_softcapping);
  }

  // The tokens that a layer sees, and its rotation.
  struct View {
    at::Tensor allowed;  // (b, s, s)
    RotaryAngles angles;
    bool is_rotated = true;
  };
  RotaryAngles angles_of(const RotaryOptions& options) const {
    const at::Tensor frequencies = rotary_inverse_frequencies(config_.head_dim(), options);
    return compute_rotary_angles(input_.position_ids, frequencies, table_.scalar_type(),
                                 options.rope_scaling_multiplier());
  }
  // Prediction modules as the last layer.
  View view_of(int64_t layer) const {
    const auto place = static_cast<size_t>(std::min(layer, config_.num_layers - 1));
    View view = config_.layers_with_window()[place] == 1 ? windowed_ : whole_;
    view.is_rotated = config_.layers_without_rotation()[place] == 0;
    if (!view.is_rotated) {
      view.angles = {at::ones_like(view.angles.cos), at::zeros_like(view.angles.sin)};
    } else if (config_.attention_chunk_size > 0) {
      const at::Tensor chunks = input_.position_ids.floor_divide(config_.attention_chunk_size);
      view.allowed = view.allowed.logical_and(chunks.unsqueeze(2) == chunks.unsqueeze(1));
    }
    return view;
  }

  // After the last layer's norm.
  at::Tensor hidden() const {
    at::Tensor x = hidden_dropout(embed(input_.tokens), config_, input_, "model.embed_tokens");
    for (int64_t number = 0; number < config_.num_layers; ++number) x = layer(x, number);
    return norm_of(x, "model.norm");
  }

  at::Tensor layer(at::Tensor x, int64_t number) const {
    const std::string name = "model.layers." + std::to_string(number);
    const bool in_front = config_.norm_placement != NormPlacement::kPost;
    const bool behind = config_.norm_placement != NormPlacement::kPre;
    const auto normed = [&](bool is_normed, const at::Tensor& y, const char* norm) {
      return is_normed ? norm_of(y, name + "." + norm) : y;
    };
    const bool convolves = config_.has_convolution_at(std::min(number, config_.num_layers - 1));
    const std::string mixer = name + (convolves ? ".conv" : ".self_attn");
    const at::Tensor y = normed(in_front, x, "input_layernorm");
    const at::Tensor mixed = convolves ? convolution(y, mixer) : attention(y, mixer, view_of(number));
    x = x + hidden_dropout(normed(behind, mixed, "post_attention_layernorm"), config_, input_, mixer + ".output");
    const at::Tensor z = normed(in_front, x, behind ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    const bool has_experts = config_.has_experts_at(number);
    const std::string mlp_name = name + (has_experts && is_mixtral() ? ".block_sparse_moe" : ".mlp");
    const at::Tensor fed = has_experts ? experts(z, mlp_name) : mlp(z, mlp_name, "gate_proj", "up_proj", "down_proj");
    return x + hidden_dropout(normed(behind, fed, "post_feedforward_layernorm"), config_, input_, mlp_name + ".output");
  }

 private:
  const at::Tensor& w(const std::string& name) const { return weights_.at(name); }
  bool is_mixtral() const { return weights_.contains("model.layers.0.block_sparse_moe.gate.weight"); }

  at::Tensor mlp(const at::Tensor& x, const std::string& name, const char* gate_name, const char* up_name,
                 const char* down_name) const {
    const at::Tensor gate = linear(x, name + "." + gate_name), up = linear(x, name + "." + up_name);
    return linear(gated(gate, up), name + "." + down_name);
  }
  at::Tensor gated(at::Tensor gate, at::Tensor up) const {
    if (!config_.quick_geglu) return (config_.geglu ? at::gelu(gate, "tanh") : gate * gate.sigmoid()) * up;
    if (const auto limit = config_.activation_func_clamp_value) {
      gate = at::minimum(gate, at::full_like(gate, *limit));
      up = at::minimum(at::maximum(up, at::full_like(up, -*limit)), at::full_like(up, *limit));
    }
    return gate * at::sigmoid(1.702 * gate) * (up + config_.glu_linear_offset);
  }
  // With tensors that hold all experts, the other way round: (e, h, 2f), where a gate and an up follow each other.
  at::Tensor stacked_expert(const at::Tensor& x, const std::string& name, int64_t e) const {
    const at::Tensor up = at::matmul(x, w(name + ".gate_up_proj")[e]) + w(name + ".gate_up_proj_bias")[e];
    const at::Tensor y = gated(up.slice(-1, 0, up.size(-1), 2), up.slice(-1, 1, up.size(-1), 2));
    return at::matmul(y, w(name + ".down_proj")[e]) + w(name + ".down_proj_bias")[e];
  }

  // Every expert sees every token; what was not chosen counts zero. Weights: a softmax over the chosen logits.
  at::Tensor experts(const at::Tensor& x, const std::string& name) const {
    const bool is_stacked = weights_.contains(name + ".experts.gate_up_proj");
    const at::Tensor logits = linear(x, name + (is_stacked ? ".router" : ".gate"));
    const auto [values, chosen] = logits.topk(config_.moe_router_topk, -1);
    const bool is_sigmoid = config_.moe_router_score_function == RouterScore::kSigmoid;
    const at::Tensor p = is_sigmoid ? values.sigmoid() : values.softmax(-1);
    const bool mixtral = is_mixtral();
    at::Tensor sum = at::zeros_like(x);
    for (int64_t e = 0; e < *config_.num_experts; ++e) {
      const at::Tensor weight = (p * (chosen == e).to(p.scalar_type())).sum(-1, true);
      const std::string experts = name + ".experts", expert = experts + "." + std::to_string(e);
      const at::Tensor seen = config_.moe_apply_probs_on_input ? weight * x : x;
      const at::Tensor y = is_stacked ? stacked_expert(seen, experts, e)
                           : mixtral  ? mlp(seen, expert, "w1", "w3", "w2")
                                      : mlp(seen, expert, "gate_proj", "up_proj", "down_proj");
      sum = sum + (config_.moe_apply_probs_on_input ? y : weight * y);
    }
    return sum;
  }

  // (b, s, 1) of the key beside the others that has no value; (b, s, 0) where there is none.
  at::Tensor sink_scores(const std::string& name, int64_t head, const at::Tensor& scores) const {
    const std::vector<int64_t> shape = {scores.size(0), scores.size(1), 1};
    if (config_.softmax_type == SoftmaxType::kVanilla) return scores.narrow(-1, 0, 0);
    if (config_.softmax_type == SoftmaxType::kOffByOne) return at::zeros(shape, scores.options());
    return w(name + ".sinks").narrow(0, head, 1).expand(shape);
  }

  // Token by token back in time; other documents are not seen.
  at::Tensor convolution(const at::Tensor& y, const std::string& name) const {
    const std::vector<at::Tensor> parts = linear(y, name + ".in_proj").chunk(3, -1);
    const at::Tensor u = parts[0] * parts[2], &kernel = w(name + ".conv.weight");
    const auto bias = weights_.find(name + ".conv.bias");
    at::Tensor v = at::zeros_like(u);
    for (int64_t back = 0; back < std::min(kernel.size(2), u.size(1)); ++back) {
      const auto later = [&](const at::Tensor& x) { return at::constant_pad_nd(x, {0, 0, back, 0}); };
      const at::Tensor is_seen = whole_.allowed.diagonal(-back, 1, 2).unsqueeze(-1).to(u.scalar_type());
      const at::Tensor weight = kernel.select(2, kernel.size(2) - 1 - back).squeeze(1);
      v = v + later(u.narrow(1, 0, u.size(1) - back) * is_seen) * weight;
    }
    return linear(parts[1] * (bias == weights_.end() ? v : v + bias->second), name + ".out_proj");
  }

  at::Tensor attention(const at::Tensor& y, const std::string& name, const View& view) const {
    const int64_t b = y.size(0), s = y.size(1);
    const int64_t n = config_.num_attention_heads, g = config_.num_kv_heads(), d = config_.head_dim();
    const auto rotated_heads = [&](const std::string& which, int64_t count) {
      at::Tensor x = linear(y, name + "." + which + "_proj");
      const bool is_whole = config_.qk_layernorm_scope == HeadNormScope::kProjection;
      if (!is_whole) x = x.view({b, s, count, d});
      if (config_.qk_layernorm) x = norm_of(x, name + "." + which + "_norm");
      x = x.view({b, s, count, d});
      // Before the rotation, whose cos² + sin² are 1 only to float32's rounding.
      if (config_.qk_l2_norm && view.is_rotated) x = norm(x, at::ones({d}, x.options()), config_.norm_epsilon);
      return rotate(x, view.angles.cos, view.angles.sin);
    };
    at::Tensor q = rotated_heads("q", n);
    const at::Tensor k = rotated_heads("k", g);
    if (!view.is_rotated && config_.attn_temperature_scale > 0) {
      const at::Tensor floors =
          (input_.position_ids + 1).floor_divide(config_.attn_temperature_floor).to(q.scalar_type());
      q = q * (1 + config_.attn_temperature_scale * floors.log1p()).view({b, s, 1, 1});
    }
    const at::Tensor v = linear(y, name + ".v_proj").view({b, s, g, d});
    at::Tensor kept;
    if (config_.attention_dropout > 0 && input_.is_training) {
      kept = attention_dropout_factors(input_, n, config_.attention_dropout,
                                       make_philox_key(input_.seed, "dropout." + name));
    }
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < n; ++head) {
      const int64_t group = head / (n / g);
      const at::Tensor scores = capped(at::matmul(q.select(2, head), k.select(2, group).transpose(1, 2)) /
                                           std::sqrt(config_.query_pre_attn_scalar.value_or(static_cast<double>(d))),
                                       config_.attn_logit_softcapping);
      const at::Tensor p_all =
          at::cat({scores.masked_fill(view.allowed.logical_not(), -INFINITY), sink_scores(name, head, scores)}, -1)
              .softmax(-1);
      at::Tensor p = p_all.narrow(-1, 0, s);
      if (kept.defined()) p = p * kept.select(2, head);
      heads.push_back(at::matmul(p, v.select(2, group)));
    }
    return linear(at::cat(heads, -1), name + ".o_proj");
  }

  const ModelConfig& config_;
  const TensorMap& weights_;
  const NaiveInput& input_;
  at::Tensor table_;
  View whole_, windowed_;
};

at::Tensor cross_entropies(const at::Tensor& logits, const at::Tensor& labels) {
  return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1);
}

// The tensor one token further on; the last of each sequence, and of each document in it, is 0.
at::Tensor shifted(const at::Tensor& x, const at::Tensor& documents) {
  const at::Tensor y = at::zeros_like(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t i = 0; i + 1 < x.size(1); ++i) {
      const bool ends = documents.defined() && !at::equal(documents[row][i], documents[row][i + 1]);
      if (!ends) y[row][i].copy_(x[row][i + 1]);
    }
  }
  return y;
}

}  // namespace

at::Tensor naive_logits(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input) {
  const NaiveDecoder decoder(config, weights, input);
  return decoder.logits(decoder.hidden());
}

at::Tensor naive_token_losses(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input) {
  return cross_entropies(naive_logits(config, weights, input), input.labels);
}

std::vector<at::Tensor> naive_prediction_losses(const ModelConfig& config, const TensorMap& weights,
                                                const NaiveInput& input) {
  const NaiveDecoder decoder(config, weights, input);
  at::Tensor hidden = decoder.hidden(), labels = input.labels, loss_weights = input.loss_weights;
  std::vector<at::Tensor> sums;
  for (int64_t depth = 1; depth <= config.num_prediction_modules(); ++depth) {
    const int64_t number = config.num_layers + depth - 1;
    const std::string name = "model.layers." + std::to_string(number);
    const at::Tensor joined = at::cat(
        {decoder.norm_of(decoder.embed(labels), name + ".enorm"), decoder.norm_of(hidden, name + ".hnorm")}, -1);
    hidden =
        decoder.norm_of(decoder.layer(decoder.linear(joined, name + ".eh_proj"), number), name + ".shared_head.norm");
    labels = shifted(labels, input.documents);
    loss_weights = shifted(loss_weights, input.documents);
    sums.push_back((cross_entropies(decoder.logits(hidden), labels) * loss_weights).sum());
  }
  return sums;
}

TensorMap naive_gradients(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input, double scale,
                          double* loss_sum) {
  TensorMap leaves;
  for (const auto& [name, tensor] : weights) leaves[name] = tensor.detach().clone().set_requires_grad(true);
  const at::Tensor sum = (naive_token_losses(config, leaves, input) * input.loss_weights).sum();
  if (loss_sum != nullptr) *loss_sum = sum.item<double>();
  at::Tensor objective = sum * scale;
  for (const at::Tensor& further : naive_prediction_losses(config, leaves, input)) {
    objective = objective + further * (scale * config.mtp_loss_scaling_factor /
                                       static_cast<double>(config.num_prediction_modules()));
  }
  objective.backward();
  TensorMap gradients;
  // An expert that no token chose has a gradient of zero.
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  return gradients;
}

}  // namespace megalith::test
