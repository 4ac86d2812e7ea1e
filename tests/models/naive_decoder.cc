#include "models/naive_decoder.h"

#include <cmath>

#include "core/philox.h"
#include "nn/rotary_embedding.h"
#include "ops/attention.h"

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

}  // namespace

at::Tensor naive_logits(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input) {
  const auto w = [&](const std::string& name) { return weights.at(name); };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor y = at::matmul(x, w(name + ".weight").t());
    const auto bias = weights.find(name + ".bias");
    return bias == weights.end() ? y : y + bias->second;
  };
  const int64_t b = input.tokens.size(0), s = input.tokens.size(1);
  const int64_t n = config.num_attention_heads, g = config.num_kv_heads(), d = config.head_dim();
  RotaryOptions rope{.dim = d, .base = config.rotary_base};
  if (config.use_rope_scaling) {
    rope.scaling =
        RopeScaling{config.rope_scaling_factor, config.rope_scaling_low_freq_factor,
                    config.rope_scaling_high_freq_factor, config.rope_scaling_original_max_position_embeddings};
  }
  const at::Tensor table = w("model.embed_tokens.weight");
  const RotaryAngles angles =
      compute_rotary_angles(input.position_ids, rotary_inverse_frequencies(rope), table.scalar_type());

  at::Tensor allowed = at::ones({s, s}, at::kBool).tril().unsqueeze(0).expand({b, s, s});
  if (input.documents.defined()) {
    allowed = allowed.logical_and(input.documents.unsqueeze(2) == input.documents.unsqueeze(1));
  }
  at::Tensor x = hidden_dropout(table.index({input.tokens}), config, input, "model.embed_tokens");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer);
    const at::Tensor y = norm(x, w(name + ".input_layernorm.weight"), config.norm_epsilon);
    const at::Tensor q = rotate(linear(y, name + ".self_attn.q_proj").view({b, s, n, d}), angles.cos, angles.sin);
    const at::Tensor k = rotate(linear(y, name + ".self_attn.k_proj").view({b, s, g, d}), angles.cos, angles.sin);
    const at::Tensor v = linear(y, name + ".self_attn.v_proj").view({b, s, g, d});
    at::Tensor kept;
    if (config.attention_dropout > 0 && input.is_training) {
      kept = attention_dropout_factors(input, n, config.attention_dropout,
                                       make_philox_key(input.seed, "dropout." + name + ".self_attn"));
    }
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < n; ++head) {
      const int64_t group = head / (n / g);
      const at::Tensor scores =
          at::matmul(q.select(2, head), k.select(2, group).transpose(1, 2)) / std::sqrt(static_cast<double>(d));
      at::Tensor p = scores.masked_fill(allowed.logical_not(), -INFINITY).softmax(-1);
      if (kept.defined()) p = p * kept.select(2, head);
      heads.push_back(at::matmul(p, v.select(2, group)));
    }
    const at::Tensor attended = linear(at::cat(heads, -1), name + ".self_attn.o_proj");
    x = x + hidden_dropout(attended, config, input, name + ".self_attn.output");
    const at::Tensor z = norm(x, w(name + ".post_attention_layernorm.weight"), config.norm_epsilon);
    const at::Tensor gate = linear(z, name + ".mlp.gate_proj"), up = linear(z, name + ".mlp.up_proj");
    x = x + hidden_dropout(linear(gate * gate.sigmoid() * up, name + ".mlp.down_proj"), config, input,
                           name + ".mlp.output");
  }
  x = norm(x, w("model.norm.weight"), config.norm_epsilon);
  return at::matmul(x, (config.untie_embeddings_and_output_weights ? w("lm_head.weight") : table).t());
}

at::Tensor naive_token_losses(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input) {
  const at::Tensor log_p = naive_logits(config, weights, input).log_softmax(-1);
  return -log_p.gather(-1, input.labels.unsqueeze(-1)).squeeze(-1);
}

TensorMap naive_gradients(const ModelConfig& config, const TensorMap& weights, const NaiveInput& input, double scale,
                          double* loss_sum) {
  TensorMap leaves;
  for (const auto& [name, tensor] : weights) leaves[name] = tensor.detach().clone().set_requires_grad(true);
  const at::Tensor sum = (naive_token_losses(config, leaves, input) * input.loss_weights).sum();
  if (loss_sum != nullptr) *loss_sum = sum.item<double>();
  (sum * scale).backward();
  TensorMap gradients;
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad();
  return gradients;
}

}  // namespace megalith::test
