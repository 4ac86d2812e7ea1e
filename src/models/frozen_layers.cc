// See frozen_layers.h.
#include "models/frozen_layers.h"

#include <ATen/ATen.h>

#include <utility>

namespace megalith {

Parameter& FrozenModule::add_weight(const FrozenContext& context, const std::string& name, std::vector<int64_t> shape) {
  return register_parameter(name, Placement::whole(name, std::move(shape)),
                            {.dtype = context.dtype, .device = context.device, .is_trainable = false});
}

FrozenLinear::FrozenLinear(const FrozenContext& context, const std::string& name, int64_t in, int64_t out)
    : weight_(&add_weight(context, name + ".weight", {out, in})), bias_(&add_weight(context, name + ".bias", {out})) {}

at::Tensor FrozenLinear::forward(const at::Tensor& x) const {
  return at::linear(x, weight_->value(), bias_->value());
}

FrozenConv::FrozenConv(const FrozenContext& context, const std::string& name, int64_t in, int64_t out, int64_t kernel,
                       int64_t stride, int64_t padding)
    : weight_(&add_weight(context, name + ".weight", {out, in, kernel, kernel})),
      bias_(&add_weight(context, name + ".bias", {out})),
      stride_(stride),
      padding_(padding) {}

at::Tensor FrozenConv::forward(const at::Tensor& x) const {
  return at::conv2d(x, weight_->value(), bias_->value(), stride_, padding_);
}

FrozenGroupNorm::FrozenGroupNorm(const FrozenContext& context, const std::string& name, int64_t channels,
                                 int64_t groups, double epsilon)
    : weight_(&add_weight(context, name + ".weight", {channels})),
      bias_(&add_weight(context, name + ".bias", {channels})),
      groups_(groups),
      epsilon_(epsilon) {}

at::Tensor FrozenGroupNorm::forward(const at::Tensor& x) const {
  return at::group_norm(x, groups_, weight_->value(), bias_->value(), epsilon_);
}

FrozenLayerNorm::FrozenLayerNorm(const FrozenContext& context, const std::string& name, int64_t width, double epsilon)
    : weight_(&add_weight(context, name + ".weight", {width})),
      bias_(&add_weight(context, name + ".bias", {width})),
      width_(width),
      epsilon_(epsilon) {}

at::Tensor FrozenLayerNorm::forward(const at::Tensor& x) const {
  return at::layer_norm(x, {width_}, weight_->value(), bias_->value(), epsilon_);
}

FrozenTable::FrozenTable(const FrozenContext& context, const std::string& name, int64_t rows, int64_t width)
    : weight_(&add_weight(context, name + ".weight", {rows, width})) {}

at::Tensor FrozenTable::forward(const at::Tensor& ids) const { return at::embedding(weight_->value(), ids); }

}  // namespace megalith
