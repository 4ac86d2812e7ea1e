// See adapters.h.
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

namespace megalith {

std::shared_ptr<const LoraOptions> adapters_of(const Config& config) {
  return config.lora.enabled ? std::make_shared<const LoraOptions>(config.lora) : nullptr;
}

std::vector<UserError> check_adapters_are_meant(const OptionSet& options) {
  std::vector<UserError> errors;
  if (options.find("lora.enabled")->is_set()) return errors;
  for (const auto& option : options.options()) {
    if (!option->name().starts_with("lora.") || !option->is_set()) continue;
    errors.emplace_back(fmt::format("{} is {}, but lora.enabled is not set: all weights would be trained",
                                    option->name(), option->text()),
                        "set lora.enabled to true, or leave it out");
    return errors;
  }
  return errors;
}

std::vector<UserError> check_adapters(const Config& config, const ModelConfig& architecture) {
  std::vector<UserError> errors;
  if (config.checkpoint.adapter && !config.checkpoint.load_hf) {
    errors.emplace_back("adapter names adapters, and no model is named that they belong to", "name it with --load_hf");
  }
  if (!config.lora.enabled || !check_lora_options(config.lora).empty()) return errors;
  if (architecture.model_type == ModelType::kBiencoder) {
    errors.emplace_back("lora.enabled with model_type biencoder, whose encoders are trained whole",
                        "leave lora.enabled out");
    return errors;
  }
  if (architecture.has_encoder() && config.lora.dropout > 0) {
    errors.emplace_back(
        fmt::format("lora.dropout is {} with model_type t5, where adapters drop nothing", config.lora.dropout),
        "set lora.dropout to 0");
  }
  for (UserError& error : check_lora_targets(config.lora, adaptable_layers(architecture))) {
    errors.push_back(std::move(error));
  }
  if (config.checkpoint.save_hf) {
    errors.emplace_back("save_hf writes a whole model, and lora.enabled trains adapters beside one",
                        "name a folder for the adapters with --save_adapter");
  }
  return errors;
}

namespace {

// Where the rows of each canonical linear lie in one vector of all of them, the same on every rank.
struct RowTable {
  std::map<std::string, int64_t> first;  // by the linear's name
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
  std::vector<PieceView> lengths, weights;
  for (const CheckpointTensor& tensor : model_tensors(data)) {
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
      if (view.piece.name.ends_with(kMagnitudeEnding)) {
        lengths.push_back(std::move(view));
      } else if (view.piece.name.ends_with(kWeightEnding) && view.tensor.dim() == 2) {
        weights.push_back(std::move(view));
      }
    }
  }
  const RowTable table = table_of_lengths(lengths, *groups.world);
  if (table.num_rows == 0) return;
  const at::Device device = data.model_parts().at(0).model.device();
  // Ranks may hold copies of an element: what is summed is divided by how often each was counted.
  const at::Tensor sums = at::zeros({2, table.num_rows}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (const PieceView& view : weights) {
    const std::string layer = view.piece.name.substr(0, view.piece.name.size() - kWeightEnding.size());
    const auto found = table.first.find(layer);
    if (found == table.first.end()) continue;
    // A canonical matrix is (in, rows) where it is transposed.
    const int64_t row_dim = view.piece.is_transposed ? 1 : 0;
    const auto d = static_cast<size_t>(row_dim);
    const Box& box = view.piece.canonical;
    const at::Tensor squares = view.tensor.to(at::kDouble).square().sum(1 - row_dim);
    const at::Tensor rows = sums.narrow(1, found->second + box.offset[d], box.extent[d]);
    rows[0].add_(squares);
    rows[1].add_(static_cast<double>(box.extent[1 - d]) / static_cast<double>(view.piece.shape[1 - d]));
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
    const bool is_adapter = data.model_parts()[i].parameter->options().is_adapter;
    (is_adapter ? tensors.adapters : tensors.base).push_back(all[i]);
  }
  return tensors;
}

}  // namespace megalith
