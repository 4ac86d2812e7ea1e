// The two networks called BERT: against numbers of Hugging Face transformers (float32, eager attention), and loss and
// gradients against an encoder in plain differentiable ATen that is written from the published formulas.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

ModelConfig bert_config(NormPlacement placement) {
  ModelConfig config;
  config.model_type = ModelType::kBert;
  config.num_layers = 2;
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.num_attention_heads = 4;
  config.vocab_size = 128;
  config.make_vocab_size_divisible_by = 100;
  config.max_position_embeddings = 64;
  config.norm_placement = placement;
  config.embedding_norm = placement == NormPlacement::kPostLn;
  config.norm_epsilon = config.embedding_norm ? 1e-12 : 1e-5;
  config.bias_gelu_fusion = false;
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

// b rows of s tokens of two types, of which all but `lengths` are padding.
struct BertBatch {
  at::Tensor tokens, types, labels, weights, lengths, sentence_labels;

  ModelInput input(double per_token = 1, double per_sequence = 1) const {
    ModelInput input{.tokens = tokens, .labels = labels, .loss_weights = weights.to(at::kFloat)};
    input.context.b = tokens.size(0);
    input.context.s = tokens.size(1);
    input.context.mask.key_lengths = lengths;
    input.more.set("token_types", types);
    input.more.set("sentence_labels", sentence_labels);
    input.terms = {{.name = "lm loss", .per_weight = at::scalar_tensor(per_token, at::kDouble)},
                   {.name = "sop loss", .per_weight = at::scalar_tensor(per_sequence, at::kDouble)}};
    return input;
  }
};

BertBatch golden_batch() {
  const at::Tensor tokens = at::tensor({3, 14, 15, 92, 65, 35, 89, 79}, at::kLong).view({1, 8});
  return {.tokens = tokens,
          .types = at::tensor({0, 0, 0, 0, 1, 1, 1, 1}, at::kLong).view({1, 8}),
          .labels = tokens,
          .weights = at::ones({1, 8}, at::kDouble),
          .lengths = {},
          .sentence_labels = at::ones({1}, at::kLong)};
}

struct BertRow {
  std::string name;
  ModelConfig config;
  std::vector<double> logits, last_logits, sentence_logits;  // of tokens 1 and 7
  double lm_loss, sentence_loss, gradient_norm;
};

std::vector<BertRow> bert_goldens() {
  const ModelConfig published = bert_config(NormPlacement::kPostLn), megatron = bert_config(NormPlacement::kPre);
  ModelConfig by_tanh = published;
  by_tanh.openai_gelu = true;
  return {{.name = "bert",
           .config = published,
           .logits = {-1.13247073, 1.09000158, 1.27484691, 1.09068847},
           .last_logits = {-1.00385892, -.54636574},
           .sentence_logits = {-.53921324, 1.15902948},
           .lm_loss = 5.361545,
           .sentence_loss = .168057695,
           .gradient_norm = 8.2864932},
          {.name = "bert with GELU by a tanh",
           .config = by_tanh,
           .logits = {-1.1327064, 1.08953667, 1.27468574, 1.09091866},
           .last_logits = {-1.00376153, -.54646635},
           .sentence_logits = {-.53930664, 1.15914536},
           .lm_loss = 5.3615146,
           .sentence_loss = .16802524,
           .gradient_norm = 8.2858677},
          {.name = "megatron-bert",
           .config = megatron,
           .logits = {-.07370154, .14563543, -1.10914397, -.71795213},
           .last_logits = {-.51995182, -.88151765},
           .sentence_logits = {-.91216612, .68810499},
           .lm_loss = 5.0411139,
           .sentence_loss = .18385524,
           .gradient_norm = 9.4412086}};
}

void expect_values(const at::Tensor& row, const std::vector<double>& expected, double tolerance,
                   const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(row[static_cast<int64_t>(i)].item<double>(), expected[i], tolerance) << what << " " << i;
  }
}

class BertGolden : public testing::TestWithParam<Kernels> {};

// Float32 sums of 64 terms add about 1e-6.
TEST_P(BertGolden, LogitsLossesAndGradientsAreThoseOfTransformers) {
  const Groups groups = Groups::single();
  for (const BertRow& golden : bert_goldens()) {
    const auto model = build_model(golden.config, tiny_context(groups, at::kFloat, GetParam()));
    load(*model, golden_weights(*model, at::kFloat));
    attach_gradients(*model);
    const ModelInput input = golden_batch().input(1.0 / 8, 1);
    {
      const at::NoGradGuard no_grad;
      const ModelOutput output = model->forward(input, {}, HeadOutput::kLogits);
      expect_values(output.logits[0][1], golden.logits, 1e-5, golden.name);
      expect_values(output.logits[0][7], golden.last_logits, 1e-5, golden.name);
      expect_values(output.sentence_logits[0], golden.sentence_logits, 1e-5, golden.name + ", sentence");
    }
    const ModelOutput output = model->forward(input, {}, HeadOutput::kLoss);
    ASSERT_EQ(output.terms.size(), 3U);  // and the accuracy
    EXPECT_EQ(output.terms[0].name, "lm loss");
    EXPECT_EQ(output.terms[1].name, "sop loss");
    EXPECT_NEAR(output.terms[0].objective.item<double>(), golden.lm_loss, 1e-5) << golden.name;
    EXPECT_NEAR(output.terms[1].objective.item<double>(), golden.sentence_loss, 1e-5) << golden.name;
    (output.terms[0].objective + output.terms[1].objective).backward();
    double squares = 0;
    for (const auto& [name, gradient] : gradients_of(*model)) {
      squares += gradient.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(std::sqrt(squares), golden.gradient_norm, 1e-4) << golden.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BertGolden, testing::Values(Kernels::kReference, Kernels::kFused));

class NaiveBert {
 public:
  NaiveBert(const ModelConfig& config, const TensorMap& weights, const BertBatch& batch)
      : config_(config), weights_(weights), batch_(batch) {}

  // The sum of the terms as BertBatch::input() scales them.
  at::Tensor objective(double per_token, double per_sequence) const {
    const at::Tensor x = hidden();
    const at::Tensor log_p = token_logits(x).log_softmax(-1);
    const at::Tensor losses = -log_p.gather(-1, batch_.labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    at::Tensor sum = (losses * batch_.weights).sum() * per_token;
    if (!config_.bert_binary_head) return sum;
    const at::Tensor pooled = linear(x.select(1, 0), "bert.pooler.dense").tanh();
    const at::Tensor sentence = linear(pooled, "cls.seq_relationship").log_softmax(-1);
    for (int64_t row = 0; row < x.size(0); ++row) {
      const int64_t label = batch_.sentence_labels[row].item<int64_t>();
      if (label >= 0) sum = sum - sentence[row][label] * per_sequence;
    }
    return sum;
  }

 private:
  const at::Tensor& w(const std::string& name) const { return weights_.at(name); }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::matmul(x, w(name + ".weight").t()) + w(name + ".bias");
  }
  at::Tensor normed(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor variance = centred.square().mean(-1, true);
    return centred / (variance + config_.norm_epsilon).sqrt() * w(name + ".weight") + w(name + ".bias");
  }
  // x Φ(x), or its approximation by a tanh.
  static at::Tensor gelu(const at::Tensor& x, bool is_tanh) {
    if (!is_tanh) return x * (1 + (x / std::sqrt(2.0)).erf()) / 2;
    return x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)).tanh()) / 2;
  }

  at::Tensor hidden() const {
    const bool is_post = config_.norm_placement == NormPlacement::kPostLn;
    const int64_t s = batch_.tokens.size(1);
    at::Tensor x = at::embedding(w("bert.embeddings.word_embeddings.weight"), batch_.tokens) +
                   w("bert.embeddings.position_embeddings.weight").narrow(0, 0, s) +
                   at::embedding(w("bert.embeddings.token_type_embeddings.weight"), batch_.types);
    if (config_.embedding_norm) x = normed(x, "bert.embeddings.LayerNorm");
    for (int64_t number = 0; number < config_.num_layers; ++number) {
      const std::string layer = "bert.encoder.layer." + std::to_string(number);
      if (is_post) {
        x = normed(x + attention(x, layer), layer + ".attention.output.LayerNorm");
        x = normed(x + mlp(x, layer), layer + ".output.LayerNorm");
      } else {
        x = x + attention(normed(x, layer + ".attention.ln"), layer);
        x = x + mlp(normed(x, layer + ".ln"), layer);
      }
    }
    return is_post ? x : normed(x, "bert.encoder.ln");
  }
  at::Tensor mlp(const at::Tensor& x, const std::string& layer) const {
    const bool is_tanh = config_.openai_gelu || config_.bias_gelu_fusion;
    return linear(gelu(linear(x, layer + ".intermediate.dense"), is_tanh), layer + ".output.dense");
  }
  at::Tensor attention(const at::Tensor& x, const std::string& layer) const {
    const int64_t b = x.size(0), s = x.size(1), n = config_.num_attention_heads, d = config_.head_dim();
    const auto heads = [&](const char* which) {
      return linear(x, layer + ".attention.self." + which).view({b, s, n, d}).transpose(1, 2);
    };
    at::Tensor scores = at::matmul(heads("query"), heads("key").transpose(2, 3)) / std::sqrt(static_cast<double>(d));
    const at::Tensor is_padding = at::arange(s, at::kLong).unsqueeze(0).ge(batch_.lengths.unsqueeze(1));
    scores = scores.masked_fill(is_padding.view({b, 1, 1, s}), -INFINITY);
    const at::Tensor out = at::matmul(scores.softmax(-1), heads("value")).transpose(1, 2).reshape({b, s, n * d});
    return linear(out, layer + ".attention.output.dense");
  }
  at::Tensor token_logits(const at::Tensor& x) const {
    const at::Tensor transformed = gelu(linear(x, "cls.predictions.transform.dense"), config_.openai_gelu);
    const at::Tensor& table = config_.untie_embeddings_and_output_weights ? w("cls.predictions.decoder.weight")
                                                                          : w("bert.embeddings.word_embeddings.weight");
    return at::matmul(normed(transformed, "cls.predictions.transform.LayerNorm"), table.t()) +
           w("cls.predictions.bias");
  }

  const ModelConfig& config_;
  const TensorMap& weights_;
  const BertBatch& batch_;
};

// Three rows: one whole, one with padding, one whose sentences do not count. A third of the tokens are to be told.
BertBatch uneven_batch(const ModelConfig& config) {
  const int64_t b = 3, s = 7;
  const NaiveInput drawn = tiny_batch(config, b, s, false);
  BertBatch batch{.tokens = drawn.tokens,
                  .types = at::arange(s, at::kLong).ge(4).to(at::kLong).repeat({b, 1}),
                  .labels = drawn.labels,
                  .weights = drawn.loss_weights,
                  .lengths = at::tensor({7, 4, 6}, at::kLong),
                  .sentence_labels = at::tensor({1, 0, -1}, at::kLong)};
  batch.types[1][3] = 1;
  batch.labels.masked_fill_(batch.weights == 0, -1);  // as Megatron-LM's data set leaves them
  return batch;
}

struct BertCase {
  std::string name;
  ModelConfig config;
};

std::vector<BertCase> bert_cases() {
  std::vector<BertCase> list;
  for (const NormPlacement placement : {NormPlacement::kPostLn, NormPlacement::kPre}) {
    ModelConfig config = bert_config(placement);
    config.hidden_size = 24;
    config.ffn_hidden_size = 20;
    config.vocab_size = 37;
    config.make_vocab_size_divisible_by = 16;
    config.max_position_embeddings = 9;
    config.norm_epsilon = 1e-3;  // large enough to be seen
    const std::string name = placement == NormPlacement::kPre ? "megatron" : "published";
    list.push_back({name, config});
    config.bias_gelu_fusion = true;  // the MLPs by a tanh, the head by the error function
    list.push_back({name + " with fused GELU", config});
    config.bias_gelu_fusion = false;
    config.openai_gelu = true;
    config.untie_embeddings_and_output_weights = true;
    list.push_back({name + " untied, with GELU by a tanh", config});
    config.openai_gelu = config.bert_binary_head = false;
    list.push_back({name + " without the classifier of sentences", config});
  }
  return list;
}

void expect_formulas(const BertCase& tested, at::ScalarType dtype, Kernels kernels, double tolerance) {
  const Groups groups = Groups::single();
  const auto model = build_model(tested.config, tiny_context(groups, dtype, kernels));
  TensorMap weights = golden_weights(*model, dtype);
  load(*model, weights);
  attach_gradients(*model);
  const BertBatch batch = uneven_batch(tested.config);
  const ModelOutput output = model->forward(batch.input(0.25, 0.5), {}, HeadOutput::kLoss);
  ASSERT_EQ(output.terms.size(), tested.config.bert_binary_head ? 3U : 1U);
  at::Tensor objective = output.terms[0].objective;
  EXPECT_EQ(output.terms[0].weight.item<double>(), batch.weights.sum().item<double>());
  if (tested.config.bert_binary_head) {
    objective = objective + output.terms[1].objective;
    EXPECT_EQ(output.terms[1].weight.item<double>(), 2) << "a label below 0 does not count";
    const at::Tensor told = model->forward(batch.input(), {}, HeadOutput::kLogits).sentence_logits.argmax(1);
    EXPECT_EQ(output.terms[2].name, "sop accuracy");
    EXPECT_EQ(output.terms[2].sum.item<int64_t>(), 100 * told.eq(batch.sentence_labels).sum().item<int64_t>());
    EXPECT_EQ(output.terms[2].weight.item<double>(), 2);
  }
  objective.backward();
  std::vector<at::Tensor> leaves;
  for (auto& [name, tensor] : weights) {
    tensor = tensor.to(at::kDouble).set_requires_grad(true);
    leaves.push_back(tensor);
  }
  const at::Tensor expected = NaiveBert(tested.config, weights, batch).objective(0.25, 0.5);
  EXPECT_NEAR(objective.item<double>(), expected.item<double>(), tolerance * expected.item<double>()) << tested.name;
  const auto gradients = torch::autograd::grad({expected}, leaves);
  const TensorMap ours = gradients_of(*model);
  ASSERT_EQ(ours.size(), weights.size());
  size_t next = 0;
  for (const auto& [name, tensor] : weights) {
    const at::Tensor& theirs = gradients[next++];
    if (name.ends_with("self.key.bias")) {
      // One vector on all keys adds one number to all scores of a query, which softmax does not see.
      EXPECT_LT(ours.at(name).abs().max().item<double>(), tolerance) << tested.name << ": " << name;
      continue;
    }
    EXPECT_GT(theirs.abs().max().item<double>(), 1e-6) << tested.name << ": nothing compared in " << name;
    EXPECT_LT(relative_difference(ours.at(name), theirs), tolerance) << tested.name << ": " << name;
  }
}

// Rounding of float64 grows by a few hundred additions and two layers: 1e-12 is usual, 1e-9 leaves room.
TEST(Bert, LossesAndGradientsAreThoseOfTheFormulas) {
  for (const BertCase& tested : bert_cases()) expect_formulas(tested, at::kDouble, Kernels::kReference, 1e-9);
}

// Float32 rounding of these sizes is near 1e-6.
TEST(Bert, FusedKernelsAgreeInFloat32) {
  for (const BertCase& tested : bert_cases()) expect_formulas(tested, at::kFloat, Kernels::kFused, 2e-5);
}

// A rounding to bf16 is up to 2^-9; a gradient of the first layer has gone through some dozens.
TEST(Bert, Bfloat16StaysNear) {
  for (const BertCase& tested : bert_cases()) expect_formulas(tested, at::kBFloat16, Kernels::kFused, 0.15);
}

// Changes that the golden rows, held to 1e-5, would catch: each tensor reversed, types exchanged, one type, no padding.
TEST(Bert, EveryPartIsSeenInTheLogits) {
  const Groups groups = Groups::single();
  const at::NoGradGuard no_grad;
  for (const BertCase& tested : bert_cases()) {
    const auto model = build_model(tested.config, tiny_context(groups));
    const TensorMap weights = golden_weights(*model, at::kDouble);
    const BertBatch batch = uneven_batch(tested.config);
    const auto logits_with = [&](const TensorMap& changed, const BertBatch& other) {
      load(*model, changed);
      const ModelOutput output = model->forward(other.input(), {}, HeadOutput::kLogits);
      const at::Tensor tokens = output.logits.reshape({-1});
      return output.sentence_logits.defined() ? at::cat({tokens, output.sentence_logits.reshape({-1})}) : tokens;
    };
    const at::Tensor original = logits_with(weights, batch);
    const auto expect_seen = [&](const at::Tensor& changed, const std::string& what) {
      EXPECT_GT((changed - original).abs().max().item<double>(), 1e-4) << tested.name << ": " << what;
    };
    for (const auto& [name, tensor] : weights) {
      TensorMap changed = weights;
      if (name.ends_with("self.key.bias")) continue;  // its gradient is zero, too
      changed[name] = tensor.flip(0);
      expect_seen(logits_with(changed, batch), name + " turned round");
    }
    BertBatch other = batch;
    other.types = 1 - batch.types;
    expect_seen(logits_with(weights, other), "types exchanged");
    other = batch;
    other.types = at::zeros_like(batch.types);
    expect_seen(logits_with(weights, other), "one type");
    other = batch;
    other.lengths = at::full({3}, 7, at::kLong);
    expect_seen(logits_with(weights, other), "padding attended to");
  }
}

TEST(Bert, TypesThatAreNotGivenAreAllTheFirst) {
  const Groups groups = Groups::single();
  const at::NoGradGuard no_grad;
  const ModelConfig config = bert_config(NormPlacement::kPre);
  const auto model = build_model(config, tiny_context(groups));
  load(*model, golden_weights(*model, at::kDouble));
  BertBatch batch = uneven_batch(config);
  batch.types.zero_();
  ModelInput without = batch.input();
  without.more = {};
  EXPECT_TRUE(at::equal(model->forward(without, {}, HeadOutput::kLogits).logits,
                        model->forward(batch.input(), {}, HeadOutput::kLogits).logits));
}

TEST(Bert, TypeOutsideTheTableIsRefused) {
  const Groups groups = Groups::single();
  const ModelConfig config = bert_config(NormPlacement::kPre);
  const auto model = build_model(config, tiny_context(groups));
  BertBatch batch = uneven_batch(config);
  batch.types[2][6] = 2;
  try {
    model->forward(batch.input(), {}, HeadOutput::kLogits);
    FAIL() << "it was taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "token type 2 in the data, but num_token_types is 2");
  }
}

// 2 operations a multiply-add; the pooler and the classifier see one token of a sequence.
TEST(Bert, WorkIsThatOfItsModules) {
  const Groups groups = Groups::single();
  const ModelConfig config = bert_config(NormPlacement::kPostLn);
  const double b = 3, s = 7, h = 64, f = 96, v = 200;  // the padded vocabulary
  const double layers = 2 * (b * s * (4 * h * h + 2 * h * f) + 2 * b * s * s * h);
  const double heads = b * s * (h * h + h * v) + b * (h * h + 2 * h);
  EXPECT_DOUBLE_EQ(build_model(config, tiny_context(groups))->forward_flops({.b = 3, .s = 7}), 2 * (layers + heads));
}

}  // namespace
}  // namespace megalith
