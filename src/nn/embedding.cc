#include "nn/embedding.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/linear/linear.h"

namespace megalith {

namespace {

void add_row_gradients(Parameter& table, const at::Tensor& ids, const at::Tensor& dy, int64_t start, Kernels kernels) {
  const Parameter::GradTarget target = table.open_grad();
  if (!target.accumulate) target.buffer.zero_();
  ops::embedding_wgrad_(target.buffer, ids, dy, start, kernels);
  table.close_grad();
}

}  // namespace

int64_t VocabularyWeight::local_rows(const Group& tp) const { return div_exact(padded_vocab, tp.size()); }
int64_t VocabularyWeight::local_start(const Group& tp) const { return local_rows(tp) * tp.rank(); }
int64_t VocabularyWeight::local_valid_rows(const Group& tp) const {
  return std::clamp<int64_t>(vocab - local_start(tp), 0, local_rows(tp));
}

Placement VocabularyWeight::placement(const Group& tp) const {
  Placement placement;
  placement.local_shape = {local_rows(tp), hidden};
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (!pipeline_ranks.empty()) {
    placement.replica_axes.insert(Axis::kPp);
    placement.partial_axes.insert(Axis::kPp);
    placement.pipeline_ranks = pipeline_ranks;
  }
  const int64_t valid = local_valid_rows(tp);  // 0: all padding
  placement.pieces.push_back({.name = name,
                              .shape = {vocab, hidden},
                              .canonical = {{std::min(local_start(tp), vocab), 0}, {valid, hidden}},
                              .local = {{0, 0}, {valid, hidden}},
                              .aliases = aliases});
  return placement;
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& tokens,
                            const at::Tensor& /*weight*/, VocabParallelEmbedding* layer) {
    expect_contribution(layer->weight_);
    node->save_for_backward({tokens});
    hold(node, layer);
    return compute(*layer, tokens);
  }

  static at::Tensor compute(VocabParallelEmbedding& layer, const at::Tensor& tokens) {
    const std::string& label = layer.weight_->name();
    at::Tensor x = ops::embedding_forward(tokens, layer.weight_->data(), layer.start_, layer.kernels_);
    if (layer.is_sequence_parallel_) return layer.tp_->reduce_scattered(x, ReduceOp::kSum, label);
    layer.tp_->all_reduce(x, ReduceOp::kSum, label).wait();
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    VocabParallelEmbedding& layer = *held<VocabParallelEmbedding*>(node);
    at::Tensor dy = gradients[0].contiguous();
    if (layer.is_sequence_parallel_) dy = layer.tp_->gathered(dy, layer.weight_->name());
    add_row_gradients(*layer.weight_, node->get_saved_variables()[0], dy, layer.start_, layer.kernels_);
    return {{}, {}, {}};
  }
};

VocabParallelEmbedding::VocabParallelEmbedding(const LayerContext& context, const VocabularyWeight& weight,
                                               double init_std, Parameter* tied)
    : tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      kernels_(context.kernels),
      start_(weight.local_start(*tp_)),
      weight_(tied != nullptr ? tied
                              : &register_parameter(weight.name, weight.placement(*tp_),
                                                    {.dtype = context.dtype,
                                                     .device = context.device,
                                                     .init = Init::normal(init_std),
                                                     .role = ParameterRole::kEmbedding,
                                                     .is_of_vocabulary = true})) {}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& tokens) {
  if (!is_recording({weight_->value()})) return EmbeddingFunction::compute(*this, tokens);
  return EmbeddingFunction::apply(tokens, weight_->value(), this);
}

struct LearnedRowsFunction : torch::autograd::Function<LearnedRowsFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& ids, const at::Tensor& /*weight*/,
                            LearnedRows* layer) {
    expect_contribution(layer->weight_);
    node->save_for_backward({ids});
    hold(node, layer);
    return ops::embedding_forward(ids, layer->weight_->data(), 0, layer->kernels_);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const LearnedRows& layer = *held<LearnedRows*>(node);
    add_row_gradients(*layer.weight_, node->get_saved_variables()[0], gradients[0].contiguous(), 0, layer.kernels_);
    return {{}, {}, {}};
  }
};

LearnedRows::LearnedRows(const LayerContext& context, const std::string& name, int64_t num_rows, int64_t hidden,
                         double init_std, const SharedRows& shared)
    : tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      kernels_(context.kernels),
      weight_(shared.tied) {
  if (weight_ != nullptr) return;
  Placement placement = Placement::whole(name, {num_rows, hidden});
  placement.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
  placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (is_sequence_parallel_) placement.partial_axes.insert(Axis::kTp);
  if (!shared.pipeline_ranks.empty()) {
    placement.replica_axes.insert(Axis::kPp);
    placement.partial_axes.insert(Axis::kPp);
    placement.pipeline_ranks = shared.pipeline_ranks;
  }
  weight_ = &register_parameter(name, std::move(placement),
                                {.dtype = context.dtype,
                                 .device = context.device,
                                 .init = Init::normal(init_std),
                                 .role = ParameterRole::kEmbedding});
}

int64_t LearnedRows::num_rows() const { return weight_->placement().local_shape[0]; }

at::TensorOptions LearnedRows::long_options() const {
  return weight_->value().options().dtype(at::kLong).requires_grad(false);
}

at::Tensor LearnedRows::rows(at::Tensor ids) {
  if (is_sequence_parallel_) {
    const int64_t part = div_exact(ids.size(0), tp_->size());
    ids = as_cut(ids.narrow(0, part * tp_->rank(), part), *tp_);
  }
  if (!is_recording({weight_->value()})) return ops::embedding_forward(ids, weight_->data(), 0, kernels_);
  return LearnedRowsFunction::apply(ids, weight_->value(), this);
}

at::Tensor LearnedPositions::position_ids(const ForwardContext& forward) const {
  const int64_t num_positions = num_rows();
  const auto check = [&](int64_t position) {
    if (0 <= position && position < num_positions) return;
    throw UserError(
        fmt::format("position {} in a sequence, but max_position_embeddings is {}", position, num_positions),
        fmt::format("learned positions end there: use sequences of at most {} tokens, prompt and generated text "
                    "together, or train with a larger max_position_embeddings",
                    num_positions));
  };
  at::Tensor ids = forward.position_ids;
  if (!ids.defined()) {
    const int64_t first = forward.cache == nullptr ? 0 : forward.cache->length;
    check(first + forward.s - 1);
    ids = at::arange(first, first + forward.s, long_options());
  } else if (ids.is_cpu() && ids.numel() > 0) {
    const auto [smallest, largest] = at::aminmax(ids);
    check(smallest.item<int64_t>());
    check(largest.item<int64_t>());
  }
  return ids.expand({forward.b, forward.s}).reshape({-1});
}

at::Tensor TokenTypes::forward(const at::Tensor& types, const ForwardContext& forward) {
  if (!types.defined()) return rows(at::zeros({forward.b * forward.s}, long_options()));
  const at::Tensor ids = types.reshape({-1});
  MEGALITH_CHECK(ids.size(0) == forward.b * forward.s, "{} types, but b {} and s {}", ids.size(0), forward.b,
                 forward.s);
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto [smallest, largest] = at::aminmax(ids);
    const int64_t least = smallest.item<int64_t>(), most = largest.item<int64_t>();
    if (least < 0 || most >= num_rows()) {
      throw UserError(
          fmt::format("token type {} in the data, but num_token_types is {}", least < 0 ? least : most, num_rows()),
          "types of tokens count from 0: correct them, or raise num_token_types");
    }
  }
  return rows(ids);
}

}  // namespace megalith
