// The linear layer's Function: products from ops/, weight gradients straight into the Parameter's buffer, and the
// collectives of its role. The sum of the input gradient over tp is under way while the weight gradient is computed,
// the gathering of the input for the weight gradient while the input gradient is.
#include "nn/linear.h"

#include <optional>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/deferred_gradients.h"
#include "nn/function.h"
#include "ops/linear/linear.h"

namespace megalith {

namespace {

// Which slice of a canonical tensor this rank holds along dim `dim`; dim < 0: all of it.
Box slice_of(const std::vector<int64_t>& shape, int dim, const Group& tp) {
  Box box = Box::whole(shape);
  if (dim < 0) return box;
  const auto d = static_cast<size_t>(dim);
  box.extent[d] = div_exact(shape[d], tp.size());
  box.offset[d] = box.extent[d] * tp.rank();
  return box;
}

// What this rank's box of a part's (rows, in), which lies from local row `local_row` on, is of the canonical weight.
Piece weight_piece(const LinearPart& part, int64_t in_features, const Box& box, int64_t local_row, bool is_transposed) {
  Piece piece{.name = part.name + ".weight",
              .shape = {part.canonical_rows == 0 ? part.rows : part.canonical_rows, in_features},
              .canonical = {{part.first_row + box.offset[0], box.offset[1]}, box.extent},
              .local = {{local_row, 0}, box.extent},
              .is_transposed = is_transposed};
  if (is_transposed) {
    for (auto* pair : {&piece.shape, &piece.canonical.offset, &piece.canonical.extent}) {
      std::swap((*pair)[0], (*pair)[1]);
    }
  }
  return piece;
}

}  // namespace

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  struct Call {
    Linear* layer;
    bool needs_dx;
    RestoreInput restore;  // null: the input is saved with the node, or not needed
  };

  // weight and bias are there for the graph; values are read from the Parameters.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& /*bias*/, Linear* layer, bool needs_dx,
                            const RestoreInput& restore) {
    expect_contribution(layer->weight_);
    expect_contribution(layer->bias_);
    // Without a weight gradient x is not needed.
    const bool needs_x = layer->weight_->is_trainable();
    node->save_for_backward({needs_x && !restore ? x : at::Tensor()});
    hold(node, Call{layer, needs_dx, needs_x ? restore : RestoreInput()});
    return compute(*layer, x);
  }

  static at::Tensor compute(Linear& layer, const at::Tensor& x) {
    const at::Tensor weight = layer.weight_->data();
    const at::Tensor bias = layer.bias_ == nullptr ? at::Tensor() : layer.bias_->data();
    const std::string& label = layer.weight_->name();
    if (layer.role_ != LinearRole::kRow || layer.tp_->size() == 1) {
      return ops::linear_forward(gathered_input(layer, x), weight, bias, layer.kernels_);
    }
    at::Tensor y = ops::linear_forward(x, weight, {}, layer.kernels_);
    if (layer.is_sequence_parallel_)
      y = layer.tp_->reduce_scattered(y, ReduceOp::kSum, label);
    else
      layer.tp_->all_reduce(y, ReduceOp::kSum, label).wait();
    return bias.defined() ? y.add_(bias) : y;  // after the reduction, or it would count tp times
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    Linear& layer = *call.layer;
    Group& tp = *layer.tp_;
    const std::string& label = layer.weight_->name();
    at::Tensor dy = gradients[0].contiguous();
    if (layer.bias_ != nullptr && layer.bias_->is_trainable()) {
      const Parameter::GradTarget target = layer.bias_->open_grad();
      if (!target.accumulate) target.buffer.zero_();
      ops::bias_grad_(target.buffer, dy, layer.kernels_);
      layer.bias_->close_grad();
    }
    // Taken from the node, which lives until the whole backward pass is done.
    const bool needs_x = layer.weight_->is_trainable();
    const at::Tensor x = needs_x ? node->get_saved_variables()[0] : at::Tensor();
    const RestoreInput restore = std::exchange(call.restore, {});
    const bool is_deferred = needs_x && layer.deferred_ != nullptr && layer.deferred_->is_deferring();
    WeightProduct product;
    // Under way while dx is computed. What is restored is not there yet, and need not be before dx is on its way.
    if (needs_x && !is_deferred && !restore) product = begin_weight_product(layer, x);
    if (layer.role_ == LinearRole::kRow && layer.is_sequence_parallel_) dy = tp.gathered(dy, label);

    at::Tensor dx, dx_sum;
    Work reduction;
    if (call.needs_dx) {
      dx = ops::linear_dgrad(dy, layer.weight_->data(), layer.kernels_);
      if (layer.role_ == LinearRole::kColumn) {
        if (layer.is_sequence_parallel_) {
          dx_sum = at::empty({div_exact(dx.size(0), tp.size()), dx.size(1)}, dx.options());
          reduction = tp.reduce_scatter(dx_sum, dx, ReduceOp::kSum, label);
        } else {
          reduction = tp.all_reduce(dx, ReduceOp::kSum, label);
        }
      }
    }
    if (is_deferred) {
      // Restored now: what it is computed from need not outlive this backward pass.
      layer.deferred_->defer([&layer, dy, x = restore ? restore() : x] {
        const at::NoGradGuard no_grad;
        finish_weight_product(layer, dy, begin_weight_product(layer, x));
      });
    } else if (needs_x) {
      if (restore) product = begin_weight_product(layer, restore());
      finish_weight_product(layer, dy, std::move(product));
    }
    reduction.wait();
    return {dx_sum.defined() ? dx_sum : dx, {}, {}, {}, {}, {}};
  }

  // The input of the weight's product, and the gathering of it that may be under way.
  struct WeightProduct {
    at::Tensor x;
    Work gathering;
  };

  static WeightProduct begin_weight_product(const Linear& layer, const at::Tensor& x) {
    if (!gathers(layer)) return {x, {}};
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] *= layer.tp_->size();
    WeightProduct product{at::empty(shape, x.options()), {}};
    product.gathering = layer.tp_->all_gather(product.x, x, layer.weight_->name());
    return product;
  }

  static void finish_weight_product(Linear& layer, const at::Tensor& dy, WeightProduct product) {
    product.gathering.wait();
    const at::Tensor& x = product.x;
    const Parameter::GradTarget target = layer.weight_->open_grad();
    ops::linear_wgrad_(target.buffer, dy, x, target.accumulate, layer.kernels_);
    layer.weight_->close_grad();
  }

  // A column layer under sequence parallelism computes with the tokens of all ranks.
  static bool gathers(const Linear& layer) { return layer.role_ == LinearRole::kColumn && layer.is_sequence_parallel_; }
  static at::Tensor gathered_input(const Linear& layer, const at::Tensor& x) {
    return gathers(layer) ? layer.tp_->gathered(x, layer.weight_->name()) : x;
  }
};

Linear::Linear(const LayerContext& context, std::string name, int64_t in_features, const std::vector<LinearPart>& parts,
               const LinearOptions& options)
    : role_(options.role),
      tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      keeps_input_(options.keeps_input),
      kernels_(context.kernels),
      deferred_(context.deferred_gradients) {
  const int split_dim = role_ == LinearRole::kColumn ? 0 : role_ == LinearRole::kRow ? 1 : -1;
  Placement weight, bias;
  int64_t local_rows = 0, local_columns = in_features;
  for (const LinearPart& part : parts) {
    const Box box = slice_of({part.rows, in_features}, split_dim, *tp_);
    local_columns = box.extent[1];
    weight.pieces.push_back(weight_piece(part, in_features, box, local_rows, options.is_transposed));
    bias.pieces.push_back({.name = part.name + ".bias",
                           .shape = {part.canonical_rows == 0 ? part.rows : part.canonical_rows},
                           .canonical = {{part.first_row + box.offset[0]}, {box.extent[0]}},
                           .local = {{local_rows}, {box.extent[0]}}});
    local_rows += box.extent[0];
  }
  weight.local_shape = {local_rows, local_columns};
  weight.replica_axes = weight.partial_axes = bias.partial_axes = bias.replica_axes = {Axis::kDp, Axis::kCp};
  if (role_ == LinearRole::kReplicated) weight.replica_axes.insert(Axis::kTp);
  if (role_ != LinearRole::kColumn) bias.replica_axes.insert(Axis::kTp);
  // A row layer's bias sees the scattered tokens; so does all of a replicated layer.
  if (is_sequence_parallel_ && role_ != LinearRole::kColumn) bias.partial_axes.insert(Axis::kTp);
  if (is_sequence_parallel_ && role_ == LinearRole::kReplicated) weight.partial_axes.insert(Axis::kTp);
  bias.local_shape = {local_rows};

  ParameterOptions parameter{.dtype = context.dtype,
                             .device = context.device,
                             .init = Init::normal(options.init_std),
                             .role = options.weight_role};
  weight_ = &register_parameter(name + ".weight", std::move(weight), parameter);
  if (options.has_bias) {
    parameter.init = Init::constant(0);
    parameter.decay_mult = 0;
    parameter.role = ParameterRole::kVector;
    bias_ = &register_parameter(name + ".bias", std::move(bias), parameter);
  }
}

at::Tensor Linear::forward(const at::Tensor& x, const RestoreInput& restore) {
  std::optional<at::Tensor> bias;
  if (bias_ != nullptr) bias = bias_->value();
  if (!is_recording({x, weight_->value(), bias.value_or(at::Tensor())})) return LinearFunction::compute(*this, x);
  MEGALITH_CHECK(keeps_input_ || restore, "{} keeps no input and cannot compute it", weight_->name());
  return LinearFunction::apply(x, weight_->value(), bias, this, x.requires_grad(),
                               keeps_input_ ? RestoreInput() : restore);
}

LayerCost Linear::own_cost(const CostShape& shape) const {
  const auto& local = weight_->placement().local_shape;
  const int64_t split_tokens = shape.b * shape.s / (is_sequence_parallel_ ? tp_->size() : 1);
  // A replicated layer sees the tokens of its rank alone; a column layer gathers them, and keeps its own.
  const auto tokens = static_cast<double>(role_ == LinearRole::kReplicated ? split_tokens : shape.b * shape.s);
  const int64_t kept_tokens = role_ == LinearRole::kRow ? shape.b * shape.s : split_tokens;
  return {.forward_flops = 2 * tokens * static_cast<double>(local[0] * local[1]),
          .kept_bytes = keeps_input_ && weight_->is_trainable() ? kept_tokens * local[1] * shape.activation_bytes : 0};
}

}  // namespace megalith
