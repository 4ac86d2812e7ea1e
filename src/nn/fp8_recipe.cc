#include "nn/fp8_recipe.h"

#include <ATen/ATen.h>

#include <limits>

#include "comm/group.h"
#include "nn/fp8_blocks.h"
#include "nn/fp8_products.h"
#include "nn/mx_recipe.h"
#include "ops/fp8_cast/fp8_cast.h"
#include "ops/gpu/blas.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

namespace megalith {

namespace {

// For scales and accumulation.
at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor experts_of_rows(const at::Tensor& offsets, int64_t num_rows, at::Device device) {
  const auto numbers = at::TensorOptions(offsets.device()).dtype(at::kLong);
  if (offsets.is_meta()) return at::empty({num_rows}, numbers);
  return at::arange(offsets.size(0) - 1, numbers).repeat_interleave(offsets.diff(), 0, num_rows).to(device);
}

// 0-d, or (e).
at::Tensor compute_amax(const at::Tensor& tensor, const OperandScope& scope) {
  const auto wide = tensor.options().dtype(wide_of(tensor.scalar_type()));
  if (tensor.is_meta()) {
    const int64_t num_experts = scope.offsets.defined() ? scope.offsets.size(0) - 1 : scope.num_experts;
    return num_experts > 0 ? at::empty({num_experts}, wide) : at::empty({}, wide);
  }
  if (scope.offsets.defined()) {
    at::Tensor amax = at::zeros({scope.offsets.size(0) - 1}, wide);
    if (tensor.numel() == 0) return amax;
    const at::Tensor of_rows = tensor.abs().amax(1).to(wide.dtype());
    const at::Tensor experts = experts_of_rows(scope.offsets, tensor.size(0), tensor.device());
    return amax.scatter_reduce(0, experts, of_rows, "amax");
  }
  if (tensor.numel() == 0) return at::zeros({}, wide);
  if (scope.num_experts > 0) return largest_size(tensor.view({scope.num_experts, -1}), {1}).to(wide.dtype());
  return largest_size(tensor, {}).to(wide.dtype());
}

at::Tensor compute_scale(const at::Tensor& amax, double largest) {
  if (amax.is_meta()) return at::empty_like(amax);
  constexpr double kMost = std::numeric_limits<float>::max();
  const at::Tensor scale = (largest / amax).clamp_max(kMost);
  return at::where(amax.eq(0).logical_or(amax.isinf()), at::ones_like(scale), scale);
}

at::Tensor scaled(const at::Tensor& tensor, const at::Tensor& factor, const OperandScope& scope) {
  const at::Tensor wide = tensor.to(factor.scalar_type());
  if (scope.offsets.defined()) {
    if (tensor.is_meta()) return at::empty_like(wide);  // no index_select for meta tensors
    const at::Tensor experts = experts_of_rows(scope.offsets, tensor.size(0), tensor.device());
    return wide * factor.index_select(0, experts).unsqueeze(1);
  }
  if (factor.dim() == 0) return wide * factor;
  return (wide.view({factor.size(0), -1}) * factor.unsqueeze(1)).view(tensor.sizes());
}

struct CastOptions {
  bool with_transposed = false;
  at::Tensor amax = {};
  Kernels kernels = Kernels::kFused;
};

ops::Fp8Cast cast_matrix(const at::Tensor& tensor, at::ScalarType fp8, const at::Tensor& scale,
                         const CastOptions& options) {
  const at::Tensor rows = tensor.dim() == 2 ? tensor : tensor.view({1, -1});
  const bool is_dense = rows.numel() == 0 || rows.stride(1) == 1 || rows.size(1) == 1;
  ops::Fp8Cast cast = ops::fp8_cast(is_dense ? rows : rows.contiguous(), scale.contiguous(), fp8,
                                    options.with_transposed, options.amax, options.kernels);
  cast.values = cast.values.view(tensor.sizes());
  return cast;
}

// scale  0-d, of experts, or of blocks along rows or in squares
ops::Fp8Cast cast(const at::Tensor& tensor, at::ScalarType fp8, const at::Tensor& scale, const OperandScope& scope,
                  const CastOptions& options) {
  if (tensor.is_meta()) return {at::empty(tensor.sizes(), tensor.options().dtype(fp8)), {}};
  if (scale.dim() == 0 || scale.dim() == 2) return cast_matrix(tensor, fp8, scale, options);
  if (scope.offsets.defined()) {
    const at::Tensor experts = experts_of_rows(scope.offsets, tensor.size(0), tensor.device());
    return cast_matrix(tensor, fp8, scale.index_select(0, experts).unsqueeze(1), options);
  }
  if (scale.dim() == 3) {
    return cast_matrix(tensor, fp8, scales_of_rows(scale, div_exact(tensor.size(0), scale.size(0))), options);
  }
  ops::Fp8Cast cast = cast_matrix(tensor.view({scale.size(0), -1}), fp8, scale.unsqueeze(1), options);
  cast.values = cast.values.view(tensor.sizes());
  return cast;
}

// For the weight's gradient.
ops::Fp8Cast cast_down_columns(const at::Tensor& tensor, at::ScalarType fp8, const at::Tensor& scale,
                               const at::Tensor& offsets, const CastOptions& options) {
  if (tensor.is_meta()) return {at::empty(tensor.sizes(), tensor.options().dtype(fp8)), {}};
  if (!offsets.defined()) return cast_matrix(tensor, fp8, scale, options);
  return cast_matrix(tensor, fp8, scales_of_rows_of_experts(scale, offsets, tensor.size(0)), options);
}

double largest_of(at::ScalarType fp8) { return ops::largest_of_fp8(fp8); }

at::Tensor values_of(const Operand& operand, const at::Tensor& offsets = {}) {
  const at::Tensor factor = fp8_factor(operand.scale);
  if (factor.dim() >= 2) return scaled_blocks(operand.values, factor, {}, 1);
  return scaled(operand.values, factor, {.offsets = offsets});
}

// Unrounded operands unchanged.
at::Tensor wgrad_values_of(const Operand& operand, const at::Tensor& offsets = {}) {
  const bool is_apart = operand.wgrad_values.defined() || operand.wgrad_scale.defined();
  at::Tensor values = operand.wgrad_values.defined() ? operand.wgrad_values : operand.values;
  const at::Tensor& scale = is_apart ? operand.wgrad_scale : operand.scale;
  if (!scale.defined()) return values;
  if (operand.transposed.defined()) values = fp8_transpose(operand.transposed);
  if (scale.dim() >= 2) return scaled_blocks(values, scale.reciprocal(), offsets, operand.num_parts);
  return scaled(values, scale.reciprocal(), {.offsets = offsets});
}

Fp8Scaling scaling_of(const Fp8Options& options) {
  if (options.fp8_recipe == "delayed") return Fp8Scaling::kDelayed;
  return options.fp8_recipe == "blockwise" ? Fp8Scaling::kBlockwise : Fp8Scaling::kTensorwise;
}

}  // namespace

Fp8Recipe::Fp8Recipe(const Fp8Settings& settings, Kernels kernels) : MatmulRecipe(kernels), settings_(settings) {
  std::optional<DelayedScaling> delayed;
  if (settings.scaling == Fp8Scaling::kDelayed) delayed = settings.delayed;
  const double largest_gradient = largest_of(eight_bits_of(OperandRole::kGradient, at::kCPU));
  memory_ = std::make_shared<Fp8Memory>(delayed, largest_gradient, settings.keeps_weights);
}

std::shared_ptr<const MatmulRecipe> Fp8Recipe::for_chunk() const {
  return std::make_shared<const Fp8Recipe>(settings_, kernels());
}

bool Fp8Recipe::leaves_plain(int64_t layer, int64_t num_layers) const {
  return layer < settings_.num_plain_first || layer >= num_layers - settings_.num_plain_last;
}

at::ScalarType Fp8Recipe::eight_bits_of(OperandRole role, at::Device device) const {
  const bool is_wider = role == OperandRole::kGradient && settings_.format == Fp8Format::kHybrid;
  if (library_on(device).are_fnuz) return is_wider ? at::kFloat8_e5m2fnuz : at::kFloat8_e4m3fnuz;
  return is_wider ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

int64_t Fp8Recipe::add_layer(const RecipeLayer& layer) const {
  const auto library = library_on(layer.device);
  const bool keeps_both = settings_.keeps_weights && settings_.keeps_transposed_weights;
  return memory_->add_layer(layer, keeps_both && layer.num_experts == 0 && library.want_rows_along_sum);
}

ops::gpu::Fp8Products Fp8Recipe::library_on(at::Device device) const {
  if (kernels() == Kernels::kReference) return {};
  const auto library = ops::gpu::fp8_products_of(device);
  return is_blockwise() && !library.take_blocks ? ops::gpu::Fp8Products{} : library;
}

bool Fp8Recipe::is_turned(const at::Tensor& tensor, const OperandScope& scope) const {
  constexpr int64_t kMultiple = 16;  // of sizes, for the library
  if (tensor.dim() != 2 || scope.offsets.defined() || scope.num_experts > 0) return false;
  if (tensor.numel() == 0 || tensor.size(0) % kMultiple != 0 || tensor.size(1) % kMultiple != 0) return false;
  return tensor.scalar_type() != at::kDouble && library_on(tensor.device()).want_rows_along_sum;
}

// amax: for delayed scaling to record.
at::Tensor Fp8Recipe::find_scale(const at::Tensor& tensor, OperandRole role, const OperandScope& scope,
                                 at::Tensor* amax) const {
  if (scope.scale.defined()) return scope.scale;
  const double largest = largest_of(eight_bits_of(role, tensor.device()));
  if (is_blockwise()) {
    const bool is_weight = role == OperandRole::kWeight;
    return scales_of_blocks(is_weight ? amax_of_squares(tensor, scope.num_experts) : amax_along_rows(tensor), largest);
  }
  if (settings_.scaling == Fp8Scaling::kDelayed) {
    MEGALITH_CHECK(scope.layer >= 0, "{}: delayed scaling of a layer that it does not know", scope.label);
    if (memory_->is_recording(role)) {
      const bool is_of_experts = scope.offsets.defined() || scope.num_experts > 0;
      // The cast finds a whole tensor's amax itself.
      *amax = is_of_experts ? compute_amax(tensor, scope)
                            : at::zeros({}, tensor.options().dtype(wide_of(tensor.scalar_type())));
    }
    // Kept for OCP's largest number, so that a run may go on with chips of the other kind.
    const double part = largest / largest_of(eight_bits_of(role, at::kCPU));
    const at::Tensor scale = memory_->scale(scope.layer, role);
    return part == 1 ? scale : scale * part;
  }
  at::Tensor present = compute_amax(tensor, scope);
  if (scope.group != nullptr && scope.group->size() > 1) {
    scope.group->all_reduce(present, ReduceOp::kMax, std::string(scope.label) + " amax").wait();
  }
  return compute_scale(present, largest);
}

Operand Fp8Recipe::take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const {
  if (role == OperandRole::kWeight) return take_weight(tensor, scope);
  const bool is_turned_for_wgrad = settings_.rounds_wgrad && scope.is_for_wgrad && is_turned(tensor, scope);
  Operand operand = cast_and_record(tensor, role, scope, is_turned_for_wgrad && !is_blockwise());
  if (role != OperandRole::kGradient) return operand;
  if (!settings_.rounds_wgrad) {
    operand.wgrad_values = tensor;
  } else if (is_blockwise()) {
    const at::ScalarType fp8 = eight_bits_of(role, tensor.device());
    operand.wgrad_scale = scales_of_blocks(amax_down_columns(tensor, scope.offsets), largest_of(fp8));
    const ops::Fp8Cast down = cast_down_columns(tensor, fp8, operand.wgrad_scale, scope.offsets,
                                                {.with_transposed = is_turned_for_wgrad, .kernels = kernels()});
    operand.transposed = down.transposed;
    if (!is_turned_for_wgrad) operand.wgrad_values = down.values;
  }
  return operand;
}

Operand Fp8Recipe::cast_and_record(const at::Tensor& tensor, OperandRole role, const OperandScope& scope,
                                   bool with_transposed, at::Tensor* recorded) const {
  at::Tensor amax;
  const at::Tensor scale = find_scale(tensor, role, scope, &amax);
  const bool takes_amax = amax.defined() && amax.dim() == 0;
  const ops::Fp8Cast found =
      cast(tensor, eight_bits_of(role, tensor.device()), scale, scope,
           {.with_transposed = with_transposed, .amax = takes_amax ? amax : at::Tensor(), .kernels = kernels()});
  if (amax.defined()) memory_->record(scope.layer, role, amax);
  if (recorded != nullptr) *recorded = amax;
  Operand operand{found.values, scale, tensor.scalar_type()};
  operand.transposed = found.transposed;
  if (scale.dim() == 0 && library_on(tensor.device()).are_made) operand.factor = fp8_factor(scale);
  return operand;
}

// Rounded once a step; the first microbatch's scale serves all.
Operand Fp8Recipe::take_weight(const at::Tensor& weight, const OperandScope& scope) const {
  Fp8Memory::Weight* const known = memory_->weight(scope.layer);
  at::Tensor scale = scope.scale;
  if (known != nullptr && known->operand.scale.defined()) {
    if (known->amax.defined() && memory_->is_recording(OperandRole::kWeight)) {
      memory_->record(scope.layer, OperandRole::kWeight, known->amax);
    }
    if (known->operand.values.defined()) return known->operand;
    scale = known->operand.scale;
  }
  OperandScope scaled_as = scope;
  scaled_as.scale = scale;
  // For dgrad: kept with the copy or, if none is kept, made in backward.
  const bool is_of_backward = !settings_.keeps_weights && scope.scale.defined();
  const bool with_transposed = known != nullptr && settings_.keeps_transposed_weights &&
                               (settings_.keeps_weights || is_of_backward) && is_turned(weight, scope);
  at::Tensor amax;
  Operand operand = cast_and_record(weight, OperandRole::kWeight, scaled_as, with_transposed, &amax);
  if (known != nullptr && !known->operand.scale.defined()) memory_->set_weight(scope.layer, operand, amax);
  return operand;
}

KeptOperand Fp8Recipe::keep(const Activation& x, const Operand& taken, const OperandScope& scope) const {
  if (!settings_.rounds_wgrad) return {x.keep(), {}, taken.dtype};
  const at::ScalarType fp8 = taken.values.scalar_type();
  const bool is_transposed = scope.is_for_wgrad && is_turned(x.value, scope);
  const CastOptions how{.with_transposed = is_transposed, .kernels = kernels()};
  if (is_blockwise()) {
    const at::Tensor scale = scales_of_blocks(amax_down_columns(x.value, scope.offsets), largest_of(fp8));
    const auto rounded = [fp8, scale, how, offsets = scope.offsets](const at::Tensor& value) {
      const ops::Fp8Cast down = cast_down_columns(value, fp8, scale, offsets, how);
      return how.with_transposed ? down.transposed : down.values;
    };
    return {.values = x.kept.is_defined() ? x.kept.then(rounded) : Kept(rounded(x.value)),
            .scale = scale,
            .dtype = taken.dtype,
            .is_transposed = is_transposed};
  }
  KeptOperand kept{.scale = taken.scale, .dtype = taken.dtype, .factor = taken.factor, .is_transposed = is_transposed};
  if (!x.kept.is_defined()) {
    kept.values = Kept(is_transposed ? taken.transposed : taken.values);
    return kept;
  }
  // With the first pass's scale.
  kept.values = x.kept.then([scope, fp8, how, scale = taken.scale](const at::Tensor& value) {
    const ops::Fp8Cast again = cast(value, fp8, scale, scope, how);
    return how.with_transposed ? again.transposed : again.values;
  });
  return kept;
}

at::Tensor Fp8Recipe::forward(const Operand& x, const Operand& w, const at::Tensor& bias) const {
  if (kernels() != Kernels::kReference) {
    if (const auto y = try_fp8_forward(x, w, bias)) return *y;
  }
  const at::Tensor wide_bias = bias.defined() ? bias.to(x.scale.scalar_type()) : bias;
  return ops::linear_forward(values_of(x), values_of(w), wide_bias, kernels()).to(x.dtype);
}

at::Tensor Fp8Recipe::dgrad(const Operand& dy, const Operand& w) const {
  if (kernels() != Kernels::kReference) {
    if (const auto dx = try_fp8_dgrad(dy, w)) return *dx;
  }
  return ops::linear_dgrad(values_of(dy), values_of(w), kernels()).to(dy.dtype);
}

void Fp8Recipe::wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const {
  if (kernels() != Kernels::kReference && try_fp8_wgrad_(dw, dy, x, accumulate)) return;
  ops::linear_wgrad_(dw, wgrad_values_of(dy), wgrad_values_of(x), accumulate, kernels());
}

at::Tensor Fp8Recipe::grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_forward(values_of(x, offsets), values_of(w), offsets, kernels()).to(x.dtype);
}

at::Tensor Fp8Recipe::grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_dgrad(values_of(dy, offsets), values_of(w), offsets, kernels()).to(dy.dtype);
}

void Fp8Recipe::grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                               bool accumulate) const {
  ops::grouped_linear_wgrad_(dw, wgrad_values_of(dy, offsets), wgrad_values_of(x, offsets), offsets, accumulate,
                             kernels());
}

std::shared_ptr<const MatmulRecipe> make_recipe(const Fp8Options& options, Kernels kernels, bool keeps_weights) {
  if (!options.is_on()) return nullptr;
  if (options.is_microscaled()) {
    MxRecipe::Settings mx{.rounds_wgrad = options.fp8_wgrad};
    if (options.fp8_format == "hybrid") mx.of_gradients = kMxE5m2;
    if (options.fp4_format) mx = {.format = kMxE2m1, .of_gradients = kMxE2m1, .turns_wgrad = true};
    if (options.first_last_layers_bf16) {
      mx.num_plain_first = options.num_layers_at_start_in_bf16;
      mx.num_plain_last = options.num_layers_at_end_in_bf16;
    }
    return std::make_shared<MxRecipe>(mx, kernels);
  }
  Fp8Settings settings{.format = options.fp8_format == "hybrid" ? Fp8Format::kHybrid : Fp8Format::kE4m3,
                       .scaling = scaling_of(options),
                       .delayed = {.history_length = options.fp8_amax_history_len,
                                   .takes_largest = options.fp8_amax_compute_algo == "max",
                                   .margin = options.fp8_margin},
                       .rounds_wgrad = options.fp8_wgrad,
                       .keeps_weights = keeps_weights,
                       .keeps_transposed_weights = options.keep_fp8_weight_transpose_cache};
  if (options.first_last_layers_bf16) {
    settings.num_plain_first = options.num_layers_at_start_in_bf16;
    settings.num_plain_last = options.num_layers_at_end_in_bf16;
  }
  return std::make_shared<Fp8Recipe>(settings, kernels);
}

}  // namespace megalith
