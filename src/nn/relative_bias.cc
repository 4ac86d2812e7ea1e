#include "nn/relative_bias.h"

#include <ATen/ATen.h>

#include <cmath>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/arguments.h"
#include "ops/linear/linear.h"

namespace megalith {

namespace {

Placement bias_placement(const std::string& name, const RelativeBiasOptions& options, const Group& tp) {
  const int64_t heads = div_exact(options.num_heads, tp.size());
  Placement placement{.local_shape = {options.num_buckets, heads}};
  placement.pieces.push_back({.name = name,
                              .shape = {options.num_buckets, options.num_heads},
                              .canonical = {{0, heads * tp.rank()}, {options.num_buckets, heads}},
                              .local = {{0, 0}, {options.num_buckets, heads}}});
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (!options.pipeline_ranks.empty()) {
    placement.replica_axes.insert(Axis::kPp);
    placement.partial_axes.insert(Axis::kPp);
    placement.pipeline_ranks = options.pipeline_ranks;
  }
  return placement;
}

}  // namespace

at::Tensor relative_position_buckets(const at::Tensor& relative, const RelativeBiasOptions& options) {
  int64_t buckets = options.num_buckets;
  at::Tensor first, distance;
  if (options.is_bidirectional) {
    buckets /= 2;
    first = (relative > 0).to(at::kLong) * buckets;
    distance = relative.abs();
  } else {
    first = at::zeros_like(relative);
    distance = (-relative).clamp_min(0);
  }
  const int64_t exact = buckets / 2;
  const double range = std::log(static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const at::Tensor share = (distance.to(at::kFloat) / exact).log() / range * (buckets - exact);
  // `where` drops log(0).
  const at::Tensor far = (exact + share.clamp(0, static_cast<double>(buckets)).to(at::kLong)).clamp_max(buckets - 1);
  return first + at::where(distance < exact, distance, far);
}

struct RelativeBiasFunction : torch::autograd::Function<RelativeBiasFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& ids, const at::Tensor& /*weight*/,
                            int64_t sq, int64_t sk, RelativeBias* layer) {
    expect_contribution(layer->weight_);
    node->save_for_backward({ids});
    hold(node, layer);
    return compute(*layer, ids, sq, sk);
  }

  static at::Tensor compute(const RelativeBias& layer, const at::Tensor& ids, int64_t sq, int64_t sk) {
    const at::Tensor table = layer.weight_->data();
    const at::Tensor rows = ops::embedding_forward(ids, table, 0, layer.kernels_);  // (sq sk, n)
    return rows.to(ops::wide_dtype(table.scalar_type())).t().contiguous().view({1, -1, sq, sk});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    RelativeBias& layer = *held<RelativeBias*>(node);
    if (layer.weight_->is_trainable()) {
      const at::Tensor dbias = gradients[0].flatten(2).squeeze(0).t().contiguous();  // (sq sk, n)
      const Parameter::GradTarget target = layer.weight_->open_grad();
      if (!target.accumulate) target.buffer.zero_();
      ops::embedding_wgrad_(target.buffer, node->get_saved_variables()[0], dbias, 0, layer.kernels_);
      layer.weight_->close_grad();
    }
    return {{}, {}, {}, {}, {}};
  }
};

RelativeBias::RelativeBias(const LayerContext& context, const std::string& name, const RelativeBiasOptions& options,
                           Parameter* tied)
    : options_(options),
      kernels_(context.kernels),
      device_(context.buffer_device.value_or(context.device)),
      weight_(tied != nullptr ? tied
                              : &register_parameter(name, bias_placement(name, options, *context.groups->tp),
                                                    {.dtype = context.dtype,
                                                     .device = context.device,
                                                     .init = Init::normal(options.init_std),
                                                     .role = ParameterRole::kEmbedding})) {}

const at::Tensor& RelativeBias::bucket_ids(int64_t sq, int64_t sk, int64_t first_query) {
  const std::vector<int64_t> shape = {sq, sk, first_query};
  if (ids_.defined() && ids_shape_ == shape) return ids_;
  if (device_.is_meta()) {
    ids_ = at::empty({sq * sk}, at::TensorOptions(device_).dtype(at::kLong));
  } else {
    const at::Tensor queries = at::arange(first_query, first_query + sq, at::kLong), keys = at::arange(sk, at::kLong);
    const at::Tensor relative = keys.unsqueeze(0) - queries.unsqueeze(1);
    ids_ = relative_position_buckets(relative, options_).reshape({-1}).to(device_);
  }
  ids_shape_ = shape;
  return ids_;
}

at::Tensor RelativeBias::forward(int64_t sq, int64_t sk, int64_t first_query) {
  const at::Tensor& ids = bucket_ids(sq, sk, first_query);
  if (!is_recording({weight_->value()})) return RelativeBiasFunction::compute(*this, ids, sq, sk);
  return RelativeBiasFunction::apply(ids, weight_->value(), sq, sk, this);
}

}  // namespace megalith
