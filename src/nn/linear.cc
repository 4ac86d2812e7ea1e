// The input gradient's sum overlaps the weight gradient; gathering the input for this overlaps the input gradient.
#include "nn/linear.h"

#include <optional>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/deferred_gradients.h"
#include "nn/function.h"
#include "nn/low_rank_adapter.h"

namespace megalith {

namespace {

// dim < 0: all.
Box slice_of(const std::vector<int64_t>& shape, int dim, const Group& tp) {
  Box box = Box::whole(shape);
  if (dim < 0) return box;
  const auto d = static_cast<size_t>(dim);
  box.extent[d] = div_exact(shape[d], tp.size());
  box.offset[d] = box.extent[d] * tp.rank();
  return box;
}

Piece weight_piece(const LinearPart& part, int64_t in_features, const Box& box, int64_t local_row, int64_t local_column,
                   bool is_transposed) {
  Piece piece{.name = part.name + ".weight",
              .shape = {part.canonical_rows == 0 ? part.rows : part.canonical_rows, in_features},
              .canonical = {{part.first_row + box.offset[0], box.offset[1]}, box.extent},
              .local = {{local_row, local_column}, box.extent},
              .is_transposed = is_transposed};
  if (is_transposed) {
    for (auto* pair : {&piece.shape, &piece.canonical.offset, &piece.canonical.extent}) {
      std::swap((*pair)[0], (*pair)[1]);
    }
  }
  return piece;
}

// Boxes of (rows, in_features), columns cut part by part.
std::vector<Box> boxes_of(int64_t rows, int64_t in_features, const std::vector<int64_t>& input_parts, int split_dim,
                          const Group& tp) {
  if (split_dim != 1 || input_parts.size() < 2) return {slice_of({rows, in_features}, split_dim, tp)};
  std::vector<Box> boxes;
  int64_t first = 0;
  for (const int64_t width : input_parts) {
    boxes.push_back(slice_of({rows, width}, split_dim, tp));
    boxes.back().offset[1] += first;
    first += width;
  }
  MEGALITH_CHECK(first == in_features, "input parts of {} columns, and the layer has {}", first, in_features);
  return boxes;
}

}  // namespace

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  struct Call {
    Linear* layer;
    bool needs_dx;
    KeptOperand x;  // empty without a weight gradient
    at::Tensor weight_scale;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& /*bias*/, Linear* layer, bool needs_dx, const Kept& kept) {
    expect_contribution(layer->weight_);
    expect_contribution(layer->bias_);
    const bool has_wgrad = layer->weight_->is_trainable();
    const OperandScope scope = input_scope(*layer, has_wgrad && !gathers(*layer));
    const Operand input = layer->recipe_->take(x, OperandRole::kInput, scope), weight = weight_operand(*layer);
    Call call{layer, needs_dx, {}, weight.scale};
    if (has_wgrad) call.x = layer->recipe_->keep({x, kept}, input, scope);
    hold(node, std::move(call));
    return compute(*layer, input, weight);
  }

  static at::Tensor compute(const Linear& layer, const at::Tensor& x) {
    return compute(layer, layer.recipe_->take(x, OperandRole::kInput, input_scope(layer, false)),
                   weight_operand(layer));
  }

  static at::Tensor compute(const Linear& layer, const Operand& x, const Operand& weight) {
    const bool is_added_here = layer.bias_ != nullptr && !layer.is_rescaled();
    const at::Tensor bias = is_added_here ? layer.bias_->data() : at::Tensor();
    const std::string& label = layer.weight_->name();
    if (layer.role_ != LinearRole::kRow || layer.tp_->size() == 1) {
      return layer.recipe_->forward(gathers(layer) ? gathered(layer, x) : x, weight, bias);
    }
    at::Tensor y = layer.recipe_->forward(x, weight, {});
    if (layer.is_sequence_parallel_)
      y = layer.tp_->reduce_scattered(y, ReduceOp::kSum, label);
    else
      layer.tp_->all_reduce(y, ReduceOp::kSum, label).wait();
    return bias.defined() ? y.add_(bias) : y;  // after the sum over ranks, to count once
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    Linear& layer = *call.layer;
    Group& tp = *layer.tp_;
    const std::string& label = layer.weight_->name();
    const at::Tensor incoming = gradients[0].contiguous();
    if (layer.bias_ != nullptr && layer.bias_->is_trainable()) {
      const Parameter::GradTarget target = layer.bias_->open_grad();
      if (!target.accumulate) target.buffer.zero_();
      layer.recipe_->bias_grad_(target.buffer, incoming);
      layer.bias_->close_grad();
    }
    const bool needs_x = layer.weight_->is_trainable();
    const bool gathers_dy = layer.role_ == LinearRole::kRow && layer.is_sequence_parallel_;
    Operand dy = layer.recipe_->take(incoming, OperandRole::kGradient,
                                     {.group = layer.gradient_ranks_,
                                      .label = label,
                                      .layer = layer.layer_,
                                      .is_for_wgrad = needs_x && !gathers_dy});
    KeptOperand x = std::exchange(call.x, {});
    MEGALITH_CHECK(!needs_x || x.is_defined(), "{}: a second backward through one graph", label);
    const bool is_deferred = needs_x && layer.deferred_ != nullptr && layer.deferred_->is_deferring();
    WeightProduct product;
    // Overlaps dx; recomputed inputs wait until dx is in flight.
    const bool begins_early = needs_x && !is_deferred && !x.values.is_computed();
    if (begins_early) product = begin_weight_product(layer, x.take());
    if (gathers_dy) dy = gathered(layer, dy);

    at::Tensor dx, dx_sum;
    Work reduction;
    if (call.needs_dx) {
      dx = layer.recipe_->dgrad(dy, weight_operand(layer, call.weight_scale));
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
      if (dy.transposed.defined()) dy.values.reset();  // dx was their last reader
      // Recomputed now: its sources can go with this pass.
      layer.deferred_->defer([&layer, dy, x = x.take()] {
        const at::NoGradGuard no_grad;
        finish_weight_product(layer, dy, begin_weight_product(layer, x));
      });
    } else if (needs_x) {
      if (!begins_early) product = begin_weight_product(layer, x.take());
      finish_weight_product(layer, dy, std::move(product));
    }
    reduction.wait();
    return {dx_sum.defined() ? dx_sum : dx, {}, {}, {}, {}, {}};
  }

  struct WeightProduct {
    Operand x;
    std::vector<Work> gatherings;
  };

  static WeightProduct begin_weight_product(const Linear& layer, const Operand& x) {
    if (!gathers(layer)) return {x, {}};
    return begin_gathering(layer, x);
  }

  static void finish_weight_product(Linear& layer, const Operand& dy, WeightProduct product) {
    for (Work& gathering : product.gatherings) gathering.wait();
    const Parameter::GradTarget target = layer.weight_->open_grad();
    layer.recipe_->wgrad_(target.buffer, dy, product.x, target.accumulate);
    layer.weight_->close_grad();
  }

  static OperandScope input_scope(const Linear& layer, bool is_for_wgrad) {
    return {.group = layer.input_ranks_,
            .label = layer.weight_->name(),
            .layer = layer.layer_,
            .is_for_wgrad = is_for_wgrad};
  }
  static Operand weight_operand(const Linear& layer, const at::Tensor& scale = {}) {
    return layer.recipe_->take(
        layer.weight_->unpacked(), OperandRole::kWeight,
        {.group = layer.weight_ranks_, .label = layer.weight_->name(), .scale = scale, .layer = layer.layer_});
  }

  static bool gathers(const Linear& layer) { return layer.role_ == LinearRole::kColumn && layer.is_sequence_parallel_; }

  // All ranks' rows, and per-row scales. Eight bits travel as bytes.
  static WeightProduct begin_gathering(const Linear& layer, const Operand& local) {
    WeightProduct all{local, {}};
    const auto gather = [&](at::Tensor& rows) {
      const auto as_sent = [](const at::Tensor& values) {
        return at::isFloat8Type(values.scalar_type()) ? values.view(at::kByte) : values;
      };
      if (!rows.defined() || rows.dim() < 2) return;
      const at::Tensor own = rows.contiguous();
      std::vector<int64_t> shape = own.sizes().vec();
      shape[0] *= layer.tp_->size();
      rows = at::empty(shape, own.options());
      all.gatherings.push_back(layer.tp_->all_gather(as_sent(rows), as_sent(own), layer.weight_->name()));
    };
    for (at::Tensor* rows : {&all.x.values, &all.x.scale, &all.x.wgrad_values, &all.x.wgrad_scale}) gather(*rows);
    all.x.num_parts = layer.tp_->size();
    return all;
  }
  static Operand gathered(const Linear& layer, const Operand& local) {
    WeightProduct all = begin_gathering(layer, local);
    for (Work& gathering : all.gatherings) gathering.wait();
    return all.x;
  }
};

Linear::Linear(const LayerContext& context, std::string name, int64_t in_features, const std::vector<LinearPart>& parts,
               const LinearOptions& options)
    : role_(options.role),
      kind_(options.kind),
      tp_(context.groups->tp.get()),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      recipe_(recipe_of(context)),
      deferred_(context.deferred_gradients) {
  // Tokens are always split over cp.
  Group* const cp = context.groups->cp.get();
  Group* const tp_cp = context.groups->tp_cp.get();
  input_ranks_ = is_sequence_parallel_ || role_ == LinearRole::kRow ? tp_cp : cp;
  weight_ranks_ = role_ == LinearRole::kReplicated ? nullptr : tp_;
  gradient_ranks_ = is_sequence_parallel_ || role_ == LinearRole::kColumn ? tp_cp : cp;
  const int split_dim = role_ == LinearRole::kColumn ? 0 : role_ == LinearRole::kRow ? 1 : -1;
  Placement weight, bias;
  int64_t local_rows = 0, local_columns = in_features;
  for (const LinearPart& part : parts) {
    const std::vector<Box> boxes = boxes_of(part.rows, in_features, options.input_parts, split_dim, *tp_);
    const Box& box = boxes.front();
    local_columns = 0;
    for (const Box& one : boxes) {
      weight.pieces.push_back(
          weight_piece(part, in_features, one, local_rows, local_columns, options.is_transposed));
      local_columns += one.extent[1];
    }
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
  // See only this rank's tokens.
  if (is_sequence_parallel_ && role_ != LinearRole::kColumn) bias.partial_axes.insert(Axis::kTp);
  if (is_sequence_parallel_ && role_ == LinearRole::kReplicated) weight.partial_axes.insert(Axis::kTp);
  bias.local_shape = {local_rows};

  ParameterOptions parameter{.dtype = context.dtype,
                             .device = context.device,
                             .init = options.weight_init.value_or(Init::normal(options.init_std)),
                             .is_trainable = options.is_trainable,
                             .role = options.weight_role,
                             .is_adapter = options.is_adapter};
  if (context.lora != nullptr && context.lora->packs_weights()) {
    parameter.packing =
        WeightPacking{.ranks = weight_ranks_, .cut_dim = split_dim == 1 ? 1 : 0, .kernels = context.kernels};
  }
  weight_ = &register_parameter(name + ".weight", std::move(weight), parameter);
  if (options.has_bias) {
    parameter.packing.reset();
    parameter.init = Init::constant(0);
    parameter.decay_mult = 0;
    parameter.role = ParameterRole::kVector;
    bias_ = &register_parameter(name + ".bias", std::move(bias), parameter);
  }
  layer_ = recipe_->add_layer({.name = name,
                               .dtype = context.dtype,
                               .device = context.buffer_device.value_or(context.device),
                               .num_weight_elements = weight_->placement().num_local_elements()});
  adapter_ = LowRankAdapter::make(
      context, {.name = name,
                .in_features = in_features,
                .parts = parts,
                .role = options.role,
                .kind = options.kind,
                .input_parts = options.input_parts});
  if (adapter_ != nullptr) register_module(*adapter_);
}

Linear::~Linear() = default;

at::Tensor Linear::forward(const Activation& x, const at::Tensor& row_ids) {
  std::optional<at::Tensor> bias;
  if (bias_ != nullptr) bias = bias_->value();
  const bool is_recorded = is_recording({x.value, weight_->value(), bias.value_or(at::Tensor())});
  const at::Tensor y =
      is_recorded ? LinearFunction::apply(x.value, weight_->value(), bias, this, x.value.requires_grad(), x.kept)
                  : LinearFunction::compute(*this, x.value);
  return adapted(y, x, row_ids);
}

at::Tensor Linear::adapted(const at::Tensor& y, const Activation& x, const at::Tensor& row_ids) const {
  if (adapter_ == nullptr) return y;
  const at::Tensor sum = adapter_->add_to(y, x, row_ids);
  if (!is_rescaled()) return sum;
  const at::Tensor rescaled = adapter_->rescale(sum, weight_->unpacked());
  return bias_ == nullptr ? rescaled : rescaled + bias_->data();  // the bias is frozen
}

bool Linear::is_rescaled() const { return adapter_ != nullptr && adapter_->rescales(); }

Kept Linear::again(Kept x, const at::Tensor& row_ids) const {
  return x.then([this, row_ids](const at::Tensor& input) {
    return adapted(LinearFunction::compute(*this, input), input, row_ids);
  });
}

AdaptableLayer Linear::adaptable() const {
  AdaptableLayer layer{.kind = kind_, .parts = {}};
  for (const Piece& piece : weight_->placement().pieces) {
    if (piece.local.offset[1] != 0) continue;  // the same rows, another input part
    layer.parts.push_back(piece.name.substr(0, piece.name.rfind('.')));
    layer.rows.push_back(piece.canonical.extent[piece.other_dim(0)]);
    layer.in_features = piece.shape[piece.other_dim(1)];
  }
  return layer;
}

double Linear::own_forward_flops(const CostShape& shape) const {
  const auto& local = weight_->placement().local_shape;
  const int64_t split_tokens = shape.b * shape.s / (is_sequence_parallel_ ? tp_->size() : 1);
  // Column layers gather all ranks' tokens.
  const auto tokens = static_cast<double>(role_ == LinearRole::kReplicated ? split_tokens : shape.b * shape.s);
  return 2 * tokens * static_cast<double>(local[0] * local[1]);
}

}  // namespace megalith
