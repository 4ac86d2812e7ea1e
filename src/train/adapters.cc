#include "train/adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "checkpoint/exchange.h"
#include "checkpoint/pieces.h"
#include "comm/groups.h"
#include "models/adaptable_layers.h"
#include "nn/low_rank_adapter.h"
#include "ops/nf4/nf4.h"

namespace megalith {

std::shared_ptr<const LoraOptions> adapters_of(const Config& config) {
  return config.lora.enabled ? std::make_shared<const LoraOptions>(config.lora) : nullptr;
}

std::vector<UserError> check_adapters_are_meant(const OptionSet& options, const LoraOptions& lora) {
  std::vector<UserError> errors;
  const Option& enabled = options.of(lora.enabled);
  const Option& quantization = options.of(lora.quantization);
  if (enabled.is_set() && enabled.text() == "false" && quantization.text() != "none") {
    errors.emplace_back(
        fmt::format("lora.quantization is {}, and lora.enabled is false: weights in four bits cannot be trained",
                    quantization.text()),
        "set lora.enabled to true, or leave lora.quantization out");
  }
  if (enabled.is_set()) return errors;
  for (const auto& option : options.options()) {
    if (option->group() != enabled.group() || !option->is_set()) continue;
    errors.emplace_back(fmt::format("{} is {}, but lora.enabled is not set: all weights would be trained",
                                    option->name(), option->text()),
                        "set lora.enabled to true, or leave it out");
    return errors;
  }
  return errors;
}

namespace {

// A start is said once, and only adapters that begin have one.
void check_start(const Resolved& resolved, std::vector<UserError>& errors) {
  const LoraOptions& lora = resolved.config.lora;
  if (lora.start().kind == AdapterStart::Kind::kByMethods) return;
  for (const Option* method : {&resolved.options->of(lora.a_init), &resolved.options->of(lora.b_init)}) {
    if (method->is_default()) continue;
    errors.emplace_back(fmt::format("lora.init_lora_weights is {}, and {} is {}: both say how a matrix begins",
                                    lora.init_lora_weights, method->name(), method->text()),
                        fmt::format("leave {} out", method->name()));
  }
  if (!resolved.config.checkpoint.adapter || !lora.start().decomposes()) return;
  errors.emplace_back(fmt::format("lora.init_lora_weights is {}, and the adapters of {} have begun",
                                  lora.init_lora_weights, *resolved.config.checkpoint.adapter),
                      "leave one of the two out");
}

void leave_out_fused_queries(Resolved& resolved, const ModelConfig& architecture) {
  std::vector<std::string>& targets = resolved.config.lora.target_modules;
  if (!architecture.multi_latent_attention || std::ssize(targets) < 2) return;
  if (std::erase(targets, "linear_qkv") == 0) return;
  resolved.notes.push_back(
      fmt::format("lora.target_modules: latent attention has no linear_qkv, so adapters go to {} only",
                  fmt::join(targets, ", ")));
}

}  // namespace

std::vector<UserError> check_adapters(Resolved& resolved, const ModelConfig& architecture) {
  const Config& config = resolved.config;
  std::vector<UserError> errors;
  if (config.checkpoint.adapter && !config.checkpoint.load_hf) {
    errors.emplace_back("adapter names adapters, and no model is named that they belong to", "name it with --load_hf");
  }
  if (!config.lora.enabled || !check_lora_options(config.lora).empty()) return errors;
  const ModelTypes adaptable = resolved.options->of(config.lora.enabled).traits().read_by;
  if (!adaptable.contains(architecture.model_type)) return errors;  // said by the option
  check_start(resolved, errors);
  leave_out_fused_queries(resolved, architecture);
  std::vector<UserError> of_targets = check_lora_targets(config.lora, adaptable_layers(architecture));
  if (of_targets.empty()) of_targets = check_saved_modules(config.lora, architecture);
  for (UserError& error : of_targets) errors.push_back(std::move(error));
  if (config.checkpoint.save_hf) {
    errors.emplace_back("save_hf writes a whole model, and lora.enabled trains adapters beside one",
                        "name a folder for the adapters with --save_adapter");
  }
  return errors;
}

std::vector<UserError> check_packed_weights(const Resolved& resolved, const ModelConfig& architecture) {
  std::vector<UserError> errors;
  const Config& config = resolved.config;
  if (!config.lora.packs_weights()) return errors;
  if (config.fp8.is_on()) {
    errors.emplace_back(
        fmt::format("lora.quantization is nf4 beside {}: weights have one of them", config.fp8.words()),
        "leave one of the two out");
  }
  // A column cut begins with a block on each rank; one error each for dense layers and experts.
  std::set<bool> named;
  for (const AdaptableLayer& layer : adaptable_layers(architecture)) {
    if (layer.kind != LinearKind::kAttentionOutput && layer.kind != LinearKind::kMlpDown) continue;
    const bool has_experts = layer.num_experts > 0;
    const int64_t ranks =
        has_experts ? config.parallel.expert_tensor_parallel_size.value_or(config.parallel.tensor_model_parallel_size)
                    : config.parallel.tensor_model_parallel_size;
    if (ranks == 1 || layer.in_features % (ranks * ops::kNf4Block) == 0 || !named.insert(has_experts).second) continue;
    errors.emplace_back(
        fmt::format("lora.quantization is nf4, whose blocks have {} columns, and {} would be cut into {} parts of its "
                    "{} columns",
                    ops::kNf4Block, layer.parts.front(), ranks, layer.in_features),
        fmt::format("choose {} so that a part has a multiple of {} columns",
                    has_experts ? "expert_tensor_parallel_size" : "tensor_model_parallel_size", ops::kNf4Block));
  }
  return errors;
}

namespace {

// Offsets of each canonical linear's rows in one vector, the same on every rank.
struct RowTable {
  std::map<std::string, int64_t> first;
  int64_t num_rows = 0;
};

RowTable table_of_lengths(const std::vector<PieceView>& lengths, Group& world) {
  std::set<std::string> own;
  for (const PieceView& view : lengths) own.insert(fmt::format("{} {}", view.piece.name, view.piece.shape[0]));
  std::set<std::string> all;
  for (const std::string& lines : gather_texts(world, fmt::format("{}", fmt::join(own, "\n")), "adapted linears")) {
    std::istringstream words(lines);
    for (std::string name, rows; words >> name >> rows;) all.insert(fmt::format("{} {}", name, rows));
  }
  RowTable table;
  for (const std::string& line : all) {
    const size_t blank = line.find(' ');
    table.first[line.substr(0, blank - kMagnitudeEnding.size())] = table.num_rows;
    table.num_rows += std::stoll(line.substr(blank));
  }
  return table;
}

}  // namespace

void begin_lengths(const DataParallel& data, const Groups& groups) {
  const at::NoGradGuard no_grad;
  constexpr std::string_view kWeightEnding = ".weight";
  const std::vector<CheckpointTensor> tensors = model_tensors(data);
  std::vector<PieceView> lengths;
  for (const CheckpointTensor& tensor : tensors) {
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
      if (view.piece.name.ends_with(kMagnitudeEnding)) lengths.push_back(std::move(view));
    }
  }
  const RowTable table = table_of_lengths(lengths, *groups.world);
  if (table.num_rows == 0) return;
  const at::Device device = data.model_parts().at(0).model.device();
  // Replicas count several times: divide sums by counts.
  const at::Tensor sums = at::zeros({2, table.num_rows}, at::TensorOptions().dtype(at::kDouble).device(device));
  const auto add_rows = [&](const PieceView& view) {
    if (!view.piece.name.ends_with(kWeightEnding) || view.tensor.dim() != 2) return;
    const std::string layer = view.piece.name.substr(0, view.piece.name.size() - kWeightEnding.size());
    const auto found = table.first.find(layer);
    if (found == table.first.end()) return;
    // A transposed canonical matrix is (in, rows).
    const int64_t row_dim = view.piece.is_transposed ? 1 : 0;
    const auto d = static_cast<size_t>(row_dim);
    const Box& box = view.piece.canonical;
    const at::Tensor squares = view.tensor.to(at::kDouble).square().sum(1 - row_dim);
    const at::Tensor rows = sums.narrow(1, found->second + box.offset[d], box.extent[d]);
    rows[0].add_(squares);
    rows[1].add_(static_cast<double>(box.extent[1 - d]) / static_cast<double>(view.piece.shape[1 - d]));
  };
  for (const CheckpointTensor& tensor : tensors) {
    const at::Tensor local = tensor.packed == nullptr ? tensor.local : tensor.packed->unpacked();
    for (const PieceView& view : piece_views(*tensor.placement, local, tensor.range)) add_rows(view);
  }
  groups.world->all_reduce(sums, ReduceOp::kSum, "lengths of adapted rows").wait();
  const at::Tensor all = (sums[0] / sums[1]).sqrt();
  for (const PieceView& view : lengths) {
    const std::string layer = view.piece.name.substr(0, view.piece.name.size() - kMagnitudeEnding.size());
    const Box& box = view.piece.canonical;
    view.tensor.copy_(all.narrow(0, table.first.at(layer) + box.offset[0], box.extent[0]));
  }
}

TensorsByOwner tensors_by_owner(const DataParallel& data) {
  TensorsByOwner tensors;
  const std::vector<CheckpointTensor> all = model_tensors(data);
  for (size_t i = 0; i < all.size(); ++i) {
    const Parameter& parameter = *data.model_parts()[i].parameter;
    if (!parameter.options().is_adapter) tensors.base.push_back(all[i]);
    if (belongs_to_adapters(parameter)) tensors.adapters.push_back(all[i]);
  }
  return tensors;
}

}  // namespace megalith
