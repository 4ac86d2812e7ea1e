#include "nn/short_convolution.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "comm/sequence_shard.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/arguments.h"

namespace megalith {

namespace {

int64_t channels_of_rank(const LayerOptions& options, const LayerContext& context) {
  const int64_t h = options.hidden_size, tp = context.groups->tp->size();
  if (h % tp == 0) return h / tp;
  throw UserError(fmt::format("tensor_model_parallel_size {} does not divide hidden_size {}, the channels of layers "
                              "of layer_types conv",
                              tp, h),
                  fmt::format("set tensor_model_parallel_size to a divisor of {}", h));
}

// B, C and x, interleaved so that a rank has its channels of all three.
std::vector<LinearPart> gated_parts(const std::string& name, int64_t h) {
  return {{name, h, 0, 3 * h}, {name, h, h, 3 * h}, {name, h, 2 * h, 3 * h}};
}

// Consecutive tokens: all s, or the two chunks of a shared sequence.
int64_t num_runs(bool is_shared) { return is_shared ? 2 : 1; }

// For each tap j, whether the token it reads is of the reader's document: (b, runs, s / runs, 1) bool; undefined: all
// are.
std::vector<at::Tensor> same_document(const ForwardContext& forward, int64_t length, const Group& cp) {
  const at::Tensor& documents = forward.mask.key_documents;
  std::vector<at::Tensor> masks(static_cast<size_t>(length));
  if (!documents.defined() || forward.cache != nullptr) return masks;
  const bool is_shared = forward.row_length > 0;
  const int64_t run = forward.s / num_runs(is_shared);
  const at::Tensor padded = at::constant_pad_nd(documents, {length - 1, 0}, -1);
  std::vector<at::Tensor> runs = {padded};
  if (is_shared) {
    runs.clear();
    for (const int64_t chunk : zigzag_chunks(cp.size(), cp.rank())) {
      runs.push_back(padded.narrow(1, chunk * run, run + length - 1));
    }
  }
  const at::Tensor seen = at::stack(runs, 1), own = seen.narrow(2, length - 1, run);
  for (int64_t j = 0; j + 1 < length; ++j) {
    masks[static_cast<size_t>(j)] = seen.narrow(2, j, run).eq(own).unsqueeze(-1);
  }
  return masks;
}

}  // namespace

struct ShortConvolutionFunction : torch::autograd::Function<ShortConvolutionFunction> {
  struct Call {
    const ShortConvolution* layer;
    bool is_shared;
    std::vector<at::Tensor> same_document;
    at::Tensor before;  // as before_runs()
  };
  struct Parts {
    at::Tensor b, c, x;  // (b, runs, s / runs, c)
  };

  static Parts parts_of(const at::Tensor& projected, int64_t b, const Call& call) {
    const at::Tensor all = projected.view({b, num_runs(call.is_shared), -1, projected.size(1)});
    const int64_t c = all.size(3) / 3;
    return {all.narrow(3, 0, c), all.narrow(3, c, c), all.narrow(3, 2 * c, c)};
  }

  // u of the tokens that tap j reads, wide.
  static at::Tensor tap(const at::Tensor& seen, int64_t j, int64_t run, const Call& call) {
    const at::Tensor u = seen.narrow(2, j, run).to(ops::wide_dtype(seen.scalar_type()));
    const at::Tensor& mask = call.same_document[static_cast<size_t>(j)];
    return mask.defined() ? u * mask : u;
  }
  static at::Tensor weight_of(const Call& call, int64_t j) {
    const at::Tensor kernel = call.layer->kernel_->data();
    return kernel.select(2, j).select(1, 0).to(ops::wide_dtype(kernel.scalar_type()));
  }

  static at::Tensor convolved(const at::Tensor& u, const Call& call) {
    const at::Tensor seen = at::cat({call.before, u}, 2);
    at::Tensor v;
    for (int64_t j = 0; j < call.layer->length_; ++j) {
      const at::Tensor product = tap(seen, j, u.size(2), call) * weight_of(call, j);
      v = v.defined() ? v.add_(product) : product;
    }
    if (call.layer->bias_ != nullptr) v += call.layer->bias_->data();
    return v.to(u.scalar_type());
  }

  static at::Tensor compute(const at::Tensor& projected, int64_t b, const Call& call) {
    const Parts parts = parts_of(projected, b, call);
    return (parts.c * convolved(parts.b * parts.x, call)).reshape({projected.size(0), -1}).contiguous();
  }

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& projected,
                            const at::Tensor& /*kernel*/, const std::optional<at::Tensor>& /*bias*/, int64_t b,
                            Call call) {
    expect_contribution(call.layer->kernel_);
    expect_contribution(call.layer->bias_);
    const Parts parts = parts_of(projected, b, call);
    call.before = call.layer->before_runs(parts.b * parts.x, call.is_shared);
    const at::Tensor y = compute(projected, b, call);
    node->save_for_backward({projected});
    hold(node, std::pair(b, std::move(call)));
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& [b, call] = held<std::pair<int64_t, Call>>(node);
    const ShortConvolution& layer = *call.layer;
    const at::Tensor projected = node->get_saved_variables()[0];
    const Parts parts = parts_of(projected, b, call);
    const at::Tensor u = parts.b * parts.x, dy = gradients[0].contiguous().view(u.sizes());
    const int64_t run = u.size(2), length = layer.length_;
    const at::Tensor dprojected = at::empty_like(projected);
    const Parts d = parts_of(dprojected, b, call);
    d.c.copy_(dy * convolved(u, call));
    const at::Tensor dv = (dy * parts.c).to(ops::wide_dtype(u.scalar_type()));
    const at::Tensor seen = at::cat({call.before, u}, 2);
    const at::Tensor dseen = at::zeros(seen.sizes(), dv.options());
    std::vector<at::Tensor> dweights;
    for (int64_t j = 0; j < length; ++j) {
      dweights.push_back((dv * tap(seen, j, run, call)).sum({0, 1, 2}));
      const at::Tensor du = dv * weight_of(call, j);
      const at::Tensor& mask = call.same_document[static_cast<size_t>(j)];
      dseen.narrow(2, j, run).add_(mask.defined() ? du * mask : du);
    }
    if (layer.kernel_->is_trainable()) layer.kernel_->add_grad(at::stack(dweights, 1).unsqueeze(1));
    if (layer.bias_ != nullptr && layer.bias_->is_trainable()) layer.bias_->add_grad(dv.sum({0, 1, 2}));
    const at::Tensor du = dseen.narrow(2, length - 1, run);
    layer.add_gradient_before(du, dseen.narrow(2, 0, length - 1), call.is_shared);
    d.b.copy_(du * parts.x);
    d.x.copy_(du * parts.b);
    return {dprojected, {}, {}, {}, {}};
  }
};

ShortConvolution::ShortConvolution(const LayerContext& context, const std::string& name, const LayerOptions& options,
                                   const ConvolutionSite& site)
    : name_(name),
      channels_(channels_of_rank(options, context)),
      length_(options.conv_kernel_size),
      layer_(site.layer),
      cp_(context.groups->cp.get()),
      in_(context, name + "." + site.names.in, options.hidden_size,
          gated_parts(name + "." + site.names.in, options.hidden_size),
          {.role = LinearRole::kColumn, .has_bias = options.conv_bias, .init_std = options.init_method_std}),
      output_(context, name + "." + site.names.output, options.hidden_size, options.hidden_size,
              {.role = LinearRole::kRow, .has_bias = options.conv_bias, .init_std = site.output_init_std}) {
  const std::string kernel = name + "." + site.names.kernel;
  register_module(in_);
  kernel_ = &add_kernel(context, kernel + ".weight", {options.hidden_size, 1, length_},
                        Init::normal(options.init_method_std));
  if (options.conv_bias) bias_ = &add_kernel(context, kernel + ".bias", {options.hidden_size}, Init::constant(0));
  register_module(output_);
}

// Cut by channels; gradients are partial only over tokens.
Parameter& ShortConvolution::add_kernel(const LayerContext& context, const std::string& name,
                                        std::vector<int64_t> shape, const Init& init) {
  Box own = Box::whole(shape);
  own.extent[0] = channels_;
  const Box local = own;
  own.offset[0] = channels_ * context.groups->tp->rank();
  Placement placement{.local_shape = local.extent};
  const bool is_bias = shape.size() == 1;
  placement.pieces.push_back({.name = name, .shape = std::move(shape), .canonical = own, .local = local});
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  return register_parameter(name, std::move(placement),
                            {.dtype = context.dtype,
                             .device = context.device,
                             .init = init,
                             .decay_mult = is_bias ? 0.0 : 1.0,
                             .role = ParameterRole::kVector});
}

at::Tensor ShortConvolution::before_runs(const at::Tensor& u, bool is_shared) const {
  const int64_t b = u.size(0), past = length_ - 1;
  if (!is_shared || past == 0) return at::zeros({b, num_runs(is_shared), past, channels_}, u.options());
  // Whole chunks where they are shorter than L - 1.
  const int64_t tail = std::min(past, u.size(2));
  const at::Tensor own = u.narrow(2, u.size(2) - tail, tail).reshape({b, 2 * tail, channels_});
  const at::Tensor all = zigzag_join(cp_->gathered(own, name_ + " tokens before").view({cp_->size(), b, 2 * tail, -1}));
  const at::Tensor padded = at::constant_pad_nd(all, {0, 0, past, 0});
  std::vector<at::Tensor> before;
  for (const int64_t chunk : zigzag_chunks(cp_->size(), cp_->rank())) {
    before.push_back(padded.narrow(1, chunk * tail, past));
  }
  return as_cut(at::stack(before, 1), *cp_);
}

void ShortConvolution::add_gradient_before(const at::Tensor& du, const at::Tensor& dbefore, bool is_shared) const {
  const int64_t b = du.size(0), past = length_ - 1;
  if (!is_shared || past == 0) return;
  const int64_t tail = std::min(past, du.size(2)), size = cp_->size();
  const at::Tensor padded = at::zeros({b, past + 2 * size * tail, channels_}, du.options());
  int64_t run = 0;
  for (const int64_t chunk : zigzag_chunks(cp_->size(), cp_->rank())) {
    padded.narrow(1, chunk * tail, past).add_(dbefore.select(1, run++));
  }
  const at::Tensor parts = at::empty({size, b, 2 * tail, channels_}, du.options());
  zigzag_split(padded.narrow(1, past, 2 * size * tail), parts);
  const at::Tensor own = cp_->reduce_scattered(parts.flatten(0, 1), ReduceOp::kSum, name_ + " tokens before");
  du.narrow(2, du.size(2) - tail, tail).add_(own.view({b, 2, tail, channels_}));
}

at::Tensor ShortConvolution::before_cached(const at::Tensor& u, const ForwardContext& forward) const {
  KvCache& cache = *forward.cache;
  const auto number = static_cast<size_t>(layer_);
  if (cache.slots.size() <= number) cache.slots.resize(number + 1);
  at::Tensor& state = cache.slots[number].state;
  const at::Tensor before = state.defined() ? state : at::zeros({u.size(0), length_ - 1, channels_}, u.options());
  const at::Tensor all = at::cat({before, u.select(1, 0)}, 1);
  state = all.narrow(1, all.size(1) - (length_ - 1), length_ - 1).clone();
  return before.unsqueeze(1);
}

at::Tensor ShortConvolution::forward(const Activation& x, const ForwardContext& forward,
                                     const RotaryAngles& /*angles*/) {
  const at::Tensor rows = forward.dropout_rows();
  const at::Tensor projected = in_.forward(x, rows);
  MEGALITH_CHECK(projected.size(0) == forward.b * forward.s, "{} tokens, but b {} and s {}", projected.size(0),
                 forward.b, forward.s);
  using Function = ShortConvolutionFunction;
  Function::Call call{this, forward.row_length > 0, same_document(forward, length_, *cp_), {}};
  std::optional<at::Tensor> bias;
  if (bias_ != nullptr) bias = bias_->value();
  if (is_recording({projected, kernel_->value(), bias.value_or(at::Tensor())})) {
    MEGALITH_CHECK(forward.cache == nullptr, "a cache keeps no graph");
    return output_.forward(Function::apply(projected, kernel_->value(), bias, forward.b, call), rows);
  }
  const Function::Parts parts = Function::parts_of(projected, forward.b, call);
  const at::Tensor u = parts.b * parts.x;
  call.before = forward.cache != nullptr ? before_cached(u, forward) : before_runs(u, call.is_shared);
  return output_.forward(Function::compute(projected, forward.b, call), rows);
}

double ShortConvolution::own_forward_flops(const CostShape& shape) const {
  return 2 * static_cast<double>(shape.b * shape.s * channels_ * length_);
}

}  // namespace megalith
