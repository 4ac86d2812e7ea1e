#include "models/classifier_head.h"

#include <ATen/ATen.h>

#include "comm/groups.h"
#include "core/philox.h"
#include "models/model_head.h"
#include "models/text_units.h"
#include "nn/bert_head.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/picked_tokens.h"
#include "ops/arguments.h"

namespace megalith {
namespace {

// The token each row is classified by, on this rank.
struct ReadTokens {
  at::Tensor index;    // (b) int64, of the rank's b * s
  at::Tensor is_here;  // (b) bool; undefined: all are
};

ReadTokens read_tokens(const ForwardContext& context, bool is_last, const at::Tensor& like) {
  const auto whole = like.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor begins = at::arange(context.b, whole) * context.s;
  const at::Tensor& lengths = context.mask.key_lengths;
  at::Tensor position = at::zeros({context.b}, whole);
  if (is_last) position = lengths.defined() ? lengths - 1 : position + std::max(context.row_length, context.s) - 1;
  if (context.row_length == 0) return {.index = begins + position, .is_here = {}};
  const at::Tensor is_it = context.mask.query_positions.unsqueeze(0).eq(position.unsqueeze(1));
  return {.index = begins + is_it.to(at::kLong).argmax(1), .is_here = is_it.any(1)};
}

struct ClassifierHead {
  const ModelConfig& config;
  Group *tp, *cp;  // tp: ranks that tokens are split over; null: not split
  Kernels kernels;
  uint64_t dropout_key;
  Norm* norm;
  BertPooler* pooler = nullptr;
  Linear* linear = nullptr;

  Streams operator()(Streams in, const UnitPass& pass) const {
    const ForwardContext& context = pass.context;
    const at::Tensor hidden = normed_end(norm, std::move(in[0]));
    const ReadTokens read = read_tokens(context, pooler == nullptr, hidden);
    at::Tensor x = picked_tokens(hidden, read.index, tp);
    if (pooler != nullptr) x = pooler->forward(x);
    const double p = config.classifier_dropout.value_or(pooler != nullptr ? config.hidden_dropout : 0);
    if (p > 0 && context.is_training) {
      MEGALITH_CHECK(context.row_ids.defined(), "dropout needs the global numbers of the tokens");
      const at::Tensor row_ids = context.row_ids.reshape({-1}).gather(0, read.index);
      x = dropped(x, row_ids, 0, p, dropout_key, kernels);
    }
    const at::Tensor logits = linear->forward(x);
    if (pass.head == HeadOutput::kLoss || pass.head == HeadOutput::kTokenLosses) {
      add_loss(logits, read.is_here, *pass.input, *pass.output);
    } else {
      pass.output->logits = whole(logits.detach(), read.is_here).unsqueeze(1);
    }
    return {};
  }

 private:
  at::Tensor whole(const at::Tensor& logits, const at::Tensor& is_here) const {
    if (!is_here.defined()) return logits;
    const at::Tensor all = logits.masked_fill(is_here.eq(0).unsqueeze(1), 0);
    cp->all_reduce(all, ReduceOp::kSum, "logits of sequences").wait();
    return all;
  }

  void add_loss(const at::Tensor& logits, const at::Tensor& is_here, const ModelInput& input,
                ModelOutput& output) const {
    const at::Tensor wide = logits.to(ops::wide_dtype(logits.scalar_type()));
    const at::Tensor labels = input.more.at(input::kClassLabels.name);
    at::Tensor weights = class_weights(labels).to(wide.scalar_type());
    if (is_here.defined()) weights = weights * is_here.to(wide.scalar_type());
    const at::Tensor losses = class_losses(wide, labels);
    const at::Tensor sum = (losses * weights).sum();
    const at::Tensor& scale = input.terms.at(0).per_weight;
    output.terms.push_back({.name = input.terms[0].name,
                            .sum = sum.detach(),
                            .weight = weights.sum(),
                            .objective = scale.defined() ? sum * scale.to(sum.scalar_type()) : sum});
    output.token_losses = (losses * weights).detach().unsqueeze(1);
    if (config.is_regression()) return;
    const at::Tensor is_right = wide.detach().argmax(1).eq(labels).to(wide.scalar_type());
    output.terms.push_back({.name = kClassAccuracy,
                            .sum = (is_right * weights).sum() * 100,
                            .weight = output.terms[0].weight,
                            .objective = {}});
  }
};

void make_classifier(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                     const LayerContext& context) {
  const bool is_split = context.is_sequence_parallel && context.groups->tp->size() > 1, is_bert = !config.is_causal();
  ClassifierHead head{.config = config,
                      .tp = is_split ? context.groups->tp.get() : nullptr,
                      .cp = context.groups->cp.get(),
                      .kernels = context.kernels,
                      .dropout_key = make_philox_key(context.seed, "dropout.classifier"),
                      .norm = add_final_norm(unit, config, names, context)};
  if (is_bert) head.pooler = &unit.add<BertPooler>(context, config, names.bert_head.pooler);
  LayerContext plain = context;
  plain.is_sequence_parallel = false;
  plain.recipe = nullptr;  // eight bits would not speed up one token of a sequence
  const LinearOptions options{
      .role = LinearRole::kReplicated, .has_bias = is_bert, .init_std = config.init_method_std};
  head.linear = &unit.add<Linear>(plain, is_bert ? "classifier" : "score", config.hidden_size, config.num_labels,
                                  options);
  unit.cost_shape = [norm = static_cast<const Module*>(head.norm)](const Module& part, CostShape shape) {
    if (&part != norm) shape.s = 1;
    return shape;
  };
  unit.forward = head;
}

// transformers' name for an unnamed class: "LABEL_1".
std::string default_name(int64_t label) { return fmt::format("LABEL_{}", label); }

void read_labels(const Json& file, ModelConfig& config) {
  const Json* names = find_member(file, "id2label", kHfConfigFile);
  config.num_labels = 2;
  config.label_names.clear();
  if (names == nullptr) return;
  const std::string where = fmt::format("{}: id2label", kHfConfigFile);
  config.num_labels = std::ssize(*names);
  bool are_default = true;
  for (int64_t label = 0; label < config.num_labels; ++label) {
    config.label_names.push_back(json_get<std::string>(*names, std::to_string(label), where));
    are_default = are_default && config.label_names.back() == default_name(label);
  }
  if (are_default) config.label_names.clear();
}

std::string label_name(const ModelConfig& config, int64_t label) {
  return config.label_names.empty() ? default_name(label) : config.label_names[static_cast<size_t>(label)];
}

Json id2label(const ModelConfig& config) {
  Json names = Json::object();
  for (int64_t label = 0; label < config.num_labels; ++label) names[std::to_string(label)] = label_name(config, label);
  return names;
}

Json label2id(const ModelConfig& config) {
  Json ids = Json::object();
  for (int64_t label = 0; label < config.num_labels; ++label) ids[label_name(config, label)] = label;
  return ids;
}

std::string problem_type(const ModelConfig& config) {
  return config.is_regression() ? "regression" : "single_label_classification";
}

// If absent, follows from the labels.
void check_problem(const Json& file, ModelConfig& config) {
  const std::string is = json_get_or<std::string>(file, "problem_type", problem_type(config), kHfConfigFile);
  if (is == problem_type(config)) return;
  throw UserError(fmt::format("{}: problem_type is {}, and a classifier of {} label{} is {} here", kHfConfigFile, is,
                              config.num_labels, config.num_labels == 1 ? "" : "s", problem_type(config)),
                  "several labels of one text, and several numbers, are not provided");
}

HfRows hf_rows() {
  return HfRows()
      .custom("id2label", read_labels, id2label)
      .written("label2id", label2id)
      .custom("problem_type", check_problem, problem_type)
      .field("classifier_dropout", &ModelConfig::classifier_dropout, nullptr);
}

}  // namespace

at::Tensor class_weights(const at::Tensor& labels) { return labels.eq(labels); }

at::Tensor class_losses(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor known = labels.masked_fill(labels.ne(labels), 0);
  const int64_t count = logits.size(1);
  if (count == 1) return (logits.squeeze(1) - known.to(logits.scalar_type())).square();
  const at::Tensor classes = known.to(at::kLong).clamp(0, count - 1).unsqueeze(1);
  return at::log_softmax(logits, 1).gather(1, classes).squeeze(1).neg();
}

extern const ModelHead kClassifierHead = {.model_type = ModelType::kClassifier,
                                          .hf_class = "ForSequenceClassification",
                                          .without_class = {"olmo2", "olmo3", "glm4_moe", "llama4", "lfm2", "lfm2_moe"},
                                          .hf_rows = hf_rows,
                                          .parameters = {"score.", "classifier.", "bert.pooler."},
                                          .make = make_classifier};

}  // namespace megalith
