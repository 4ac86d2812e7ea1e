#include "checkpoint/merge_adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "checkpoint/adapter_base.h"
#include "checkpoint/adapter_folder.h"
#include "comm/groups.h"
#include "config/resolve.h"
#include "core/error.h"
#include "models/adaptable_layers.h"
#include "nn/low_rank_adapter.h"
#include "tensor_files/outline.h"

namespace megalith {
namespace {

constexpr std::string_view kWeightOfLinear = ".weight", kWeightOfDown = ".lora_A.weight",
                           kWeightOfUp = ".lora_B.weight";

bool take_ending(std::string& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.resize(name.size() - ending.size());
  return true;
}

at::Tensor wide(const at::Tensor& tensor) { return tensor.to(c10::promoteTypes(tensor.scalar_type(), at::kFloat)); }

at::Tensor product(const AdapterMatrices& matrices, at::ScalarType dtype) {
  return at::mm(matrices.up.to(dtype), matrices.down.to(dtype)).mul_(matrices.scale);
}

std::map<std::string, const CheckpointTensor*> weights_by_name(const StoredModel& model) {
  std::map<std::string, const CheckpointTensor*> found;
  for (const CheckpointTensor& tensor : model.state.tensors) {
    if (tensor.key == kModelKey) found[tensor.placement->pieces.at(0).name] = &tensor;
  }
  return found;
}

}  // namespace

ReadAdapter read_adapter_for(const std::filesystem::path& adapter, const StoredModel& base,
                             NonfiniteWeights nonfinite) {
  const Groups alone = Groups::single();
  ReadAdapter read{.options = read_adapter_folder(adapter).options, .matrices = {}};
  check_adapter_kind(adapter, base.config.is_of_diffusers(), base.folder);
  throw_if_any(check_lora_options(read.options));
  throw_if_any(check_lora_targets(read.options, adaptable_layers(base.config)));
  throw_if_any(check_saved_modules(read.options, base.config));
  if (const auto stored = stored_base_of(adapter)) {
    check_base(stored, checksum_of_base(base.folder, *alone.world), adapter.string(), base.folder);
  }
  // A model without storage gives the adapters and the weights' orientation.
  const LayerContext context{
      .groups = &alone, .device = at::kMeta, .lora = std::make_shared<const LoraOptions>(read.options)};
  const auto model = base.family->build_whole(base.config, context);
  freeze_all_but_adapters(model->parameters(), read.options);
  std::vector<CheckpointTensor> tensors;
  for (const Parameter* parameter : model->parameters()) {
    if (!belongs_to_adapters(*parameter)) continue;
    tensors.push_back(model_tensor(*parameter));
    tensors.back().local = at::empty(parameter->placement().local_shape, at::kFloat);
  }
  load_adapter(adapter, tensors, alone, nonfinite);
  for (const CheckpointTensor& tensor : tensors) {
    for (const PieceView& view : piece_views(*tensor.placement, tensor.local)) {
      std::string name = view.piece.name;
      const auto take = [&](at::Tensor& whole) {
        if (!whole.defined()) whole = at::empty(view.piece.shape, at::kFloat);
        slice_box(whole, view.piece.canonical, std::vector<int64_t>(view.piece.shape.size(), 0)).copy_(view.tensor);
      };
      if (name.find(".lora_") == std::string::npos) {
        take(read.modules[name]);
        continue;
      }
      const bool is_down = take_ending(name, kWeightOfDown), is_up = !is_down && take_ending(name, kWeightOfUp);
      if (!is_down && !is_up) take_ending(name, kMagnitudeEnding);
      const double scale = read.options.scale_of(name);
      AdapterMatrices& own = read.matrices[name.append(kWeightOfLinear)];
      own.scale = scale;
      take(is_down ? own.down : is_up ? own.up : own.length);
    }
  }
  for (const Parameter* parameter : model->parameters()) {
    for (const Piece& piece : parameter->placement().pieces) {
      const auto found = read.matrices.find(piece.name);
      if (found != read.matrices.end()) found->second.is_transposed = piece.is_transposed;
    }
  }
  return read;
}

at::Tensor merged_weight(const at::Tensor& weight, const AdapterMatrices& matrices) {
  const at::Tensor own = wide(matrices.is_transposed ? weight.t() : weight);
  at::Tensor sum = own + product(matrices, own.scalar_type());
  if (matrices.length.defined()) {
    const at::Tensor lengths = sum.square().sum(1).sqrt_();
    sum.mul_((matrices.length.to(sum.scalar_type()) / lengths).unsqueeze(1));
  }
  return matrices.is_transposed ? sum.t() : sum;
}

void merge_adapter(const ReadAdapter& adapter, at::ScalarType dtype, StoredModel& model) {
  const at::NoGradGuard no_grad;
  for (CheckpointTensor& tensor : model.state.tensors) {
    const Piece& piece = tensor.placement->pieces.at(0);
    if (const auto saved = adapter.modules.find(piece.name);
        saved != adapter.modules.end() && tensor.key == kModelKey) {
      tensor.local = saved->second.to(dtype).contiguous();
      continue;
    }
    const auto found = adapter.matrices.find(piece.name);
    if (tensor.key != kModelKey || found == adapter.matrices.end()) continue;
    MEGALITH_CHECK(piece.canonical == Box::whole(piece.shape), "{} is stored in parts", piece.name);
    tensor.local = merged_weight(values_of(tensor.local), found->second).to(dtype).contiguous();
  }
}

double unmerged_difference(const ReadAdapter& adapter, const StoredModel& merged, const StoredModel& base) {
  const at::NoGradGuard no_grad;
  const auto merged_weights = weights_by_name(merged), base_weights = weights_by_name(base);
  double worst = 0;
  for (const auto& [name, matrices] : adapter.matrices) {
    const auto rows = [&](const CheckpointTensor& tensor) {
      const at::Tensor values = values_of(tensor.local);
      return wide(matrices.is_transposed ? values.t() : values);
    };
    const at::Tensor with = rows(*merged_weights.at(name)), without = rows(*base_weights.at(name));
    const at::Tensor delta = product(matrices, without.scalar_type());
    at::Tensor taken_out = with.to(without.scalar_type());
    if (matrices.length.defined()) {
      const at::Tensor lengths = (without + delta).square().sum(1).sqrt_();
      taken_out = taken_out * (lengths / matrices.length.to(lengths.scalar_type())).unsqueeze(1);
    }
    const double difference = (taken_out - delta - without).abs().max().item<double>();
    // Removing lengths amplifies a row's rounding.
    const double largest = std::max((without + delta).abs().max().item<double>(), with.abs().max().item<double>());
    const double share = largest > 0 ? difference / largest : difference;
    worst = std::max(worst, std::isfinite(share) ? share : std::numeric_limits<double>::infinity());
  }
  return worst;
}

}  // namespace megalith
