// The embedding's Function: lookup, sum over tp, and the scatter of the gradient into the table's buffer.
#include "nn/embedding.h"

#include <algorithm>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/linear.h"

namespace megalith {

int64_t VocabularyWeight::local_rows(const Group& tp) const { return div_exact(padded_vocab, tp.size()); }
int64_t VocabularyWeight::local_start(const Group& tp) const { return local_rows(tp) * tp.rank(); }
int64_t VocabularyWeight::local_valid_rows(const Group& tp) const {
  return std::clamp<int64_t>(vocab - local_start(tp), 0, local_rows(tp));
}

Placement VocabularyWeight::placement(const Group& tp) const {
  Placement placement;
  placement.local_shape = {local_rows(tp), hidden};
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (is_shared) {
    placement.replica_axes.insert(Axis::kPp);
    placement.partial_axes.insert(Axis::kPp);
  }
  const int64_t valid = local_valid_rows(tp);
  if (valid > 0) {
    placement.pieces.push_back({.name = name,
                                .shape = {vocab, hidden},
                                .canonical = {{local_start(tp), 0}, {valid, hidden}},
                                .local = {{0, 0}, {valid, hidden}},
                                .aliases = aliases});
  }
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
    const Parameter::GradTarget target = layer.weight_->open_grad();
    if (!target.accumulate) target.buffer.zero_();
    ops::embedding_wgrad_(target.buffer, node->get_saved_variables()[0], dy, layer.start_, layer.kernels_);
    layer.weight_->close_grad();
    return {{}, {}, {}};
  }
};

VocabParallelEmbedding::VocabParallelEmbedding(const LayerContext& context, const VocabularyWeight& weight,
                                               double init_std)
    : tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      kernels_(context.kernels),
      start_(weight.local_start(*tp_)),
      weight_(&register_parameter(weight.name, weight.placement(*tp_),
                                  {.dtype = context.dtype, .device = context.device, .init = Init::normal(init_std)})) {
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& tokens) {
  if (!is_recording({weight_->value()})) return EmbeddingFunction::compute(*this, tokens);
  return EmbeddingFunction::apply(tokens, weight_->value(), this);
}

}  // namespace megalith
