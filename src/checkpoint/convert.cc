#include "checkpoint/convert.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/hf.h"
#include "checkpoint/kept_tokenizer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_store.h"
#include "comm/single_group.h"
#include "config/option.h"
#include "core/error.h"
#include "tensor_files/outline.h"

namespace megalith {
namespace {

void add_tensor(StoredModel& model, std::string_view key, const std::string& name, const std::vector<int64_t>& shape,
                const Box& box, const at::Tensor& local) {
  Placement placement;
  placement.local_shape = box.extent;
  placement.pieces.push_back({.name = name, .shape = shape, .canonical = box, .local = Box::whole(box.extent)});
  model.placements.push_back(std::move(placement));
  model.state.tensors.push_back({.key = std::string(key), .placement = &model.placements.back(), .local = local});
}

// A tensor per stored box; writers join neighbours. A file's fused tensor (flux_names.h) extends beyond this one.
void add_entry(StoredModel& model, std::string_view key, const std::string& name, const TensorStore::Entry& entry,
               NonfiniteWeights nonfinite) {
  require_floats(name, entry);
  for (const TensorStore::Part& part : entry.parts) {
    const Box box = intersect(part.box, Box::whole(entry.shape));
    const at::Tensor outline = slice_box(outline_of(part.stored), box, part.box.offset);
    if (nonfinite == NonfiniteWeights::kRefused) require_finite(name, values_of(outline), box.offset, part.path());
    add_tensor(model, key, name, entry.shape, box, outline);
  }
}

// Decodes scaled matrices to bf16, the dtype of such files' other tensors.
void add_hf_entry(StoredModel& model, const std::string& name, const TensorStore& store, std::string_view stored_name,
                  NonfiniteWeights nonfinite) {
  const TensorStore::Entry& entry = *store.find(stored_name);
  if (entry.scales.empty()) return add_entry(model, kModelKey, name, entry, nonfinite);
  const Box whole = Box::whole(entry.shape);
  const at::Tensor decoded = at::empty(entry.shape, at::kBFloat16);
  const PieceView view{
      .piece = {.name = std::string(stored_name), .shape = entry.shape, .canonical = whole, .local = whole},
      .tensor = decoded};
  read_pieces(store, {&view, 1}, nonfinite);
  add_tensor(model, kModelKey, name, entry.shape, whole, decoded);
}

}  // namespace

std::vector<CheckpointTensor> StoredModel::tensors_of(std::string_view key) const {
  std::vector<CheckpointTensor> found;
  for (const CheckpointTensor& tensor : state.tensors) {
    if (tensor.key == key) found.push_back(tensor);
  }
  return found;
}

at::ScalarType StoredModel::dtype_of(std::string_view key) const {
  for (const CheckpointTensor& tensor : state.tensors) {
    if (tensor.key == key) return tensor.local.scalar_type();
  }
  throw InternalError(fmt::format("no tensor of key {}", key));
}

StoredModel open_stored_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step, Logger& log,
                                   NonfiniteWeights nonfinite) {
  const Groups groups = Groups::single();
  const auto found = find_checkpoint(root, step, *groups.world, log);
  if (!found)
    throw UserError(fmt::format("{} holds no checkpoint", root.string()), "give the folder that --save named");
  StoredCheckpoint stored = open_checkpoint(found->folder);
  find_kept_tokenizer(found->folder, stored.manifest.configuration);
  return stored_model(stored, nonfinite);
}

StoredModel stored_model(const StoredCheckpoint& stored, NonfiniteWeights nonfinite) {
  const Manifest& manifest = stored.manifest;
  StoredModel model;
  model.folder = stored.folder;
  model.config = model_config_of(manifest.architecture, manifest.configuration);
  model.family = &family_for(model.config);
  model.state.train = manifest.train;
  model.state.architecture = manifest.architecture;
  model.state.configuration = manifest.configuration;
  for (const auto& [key, store] : stored.stores) {
    for (const auto& [name, entry] : store.entries()) add_entry(model, key, name, entry, nonfinite);
  }
  return model;
}

StoredModel open_stored_hf(const std::filesystem::path& folder, NonfiniteWeights nonfinite) {
  const HfModel read = read_hf_config(folder);
  StoredModel model;
  model.folder = folder;
  model.config = read.config;
  model.family = read.family;
  model.notes = read.notes;
  model.state.architecture = architecture_of(read.config);
  ModelConfig recorded = read.config;
  model.state.configuration = configuration_of(OptionSet(recorded));

  // A model without storage gives expected tensors and aliases.
  const Groups groups = Groups::single();
  LayerContext context;
  context.groups = &groups;
  context.device = at::kMeta;
  const auto shape = read.family->build_whole(read.config, context);
  const HfWeights weights = open_hf_weights(folder);
  const TensorStore& store = weights.store;
  std::vector<PieceView> views;
  for (const Parameter* parameter : shape->parameters()) {
    for (PieceView& view : piece_views(parameter->placement(), parameter->data())) views.push_back(std::move(view));
  }
  const StoreFit fit = compare_with_store(store, views);
  std::vector<std::string> unexpected;
  for (const auto& [name, entry] : store.entries()) {
    if (!fit.used.contains(name) && !weights.may_be_unused(name)) unexpected.push_back(name);
  }
  throw_unless_empty(folder.string(), fit.missing, fit.misshaped, unexpected,
                     "config.json and the weights of this folder do not belong together");
  std::set<std::string> added;
  for (const PieceView& view : views) {
    if (!added.insert(view.piece.name).second) continue;
    add_hf_entry(model, view.piece.name, store, store.resolve(view.piece), nonfinite);
  }
  return model;
}

}  // namespace megalith
