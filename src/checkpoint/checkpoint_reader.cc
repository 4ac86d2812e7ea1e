#include "checkpoint/checkpoint_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "checkpoint/exchange.h"
#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

bool is_weight(const std::string& key) { return key == kModelKey || key == kMasterKey; }

bool is_wanted(const CheckpointTensor& tensor, const LoadSettings& settings) {
  return settings.with_optimizer || is_weight(tensor.key) || tensor.is_optional;
}

const TensorStore& store_of(const std::map<std::string, TensorStore>& stores, std::string_view key) {
  static const TensorStore empty;
  const auto found = stores.find(std::string(key));
  return found == stores.end() ? empty : found->second;
}

// The key that has a piece of `key`.
std::string source_key(const std::map<std::string, TensorStore>& stores, const std::string& key,
                       const PieceView& view) {
  const TensorStore& model = store_of(stores, kModelKey);
  const TensorStore& master = store_of(stores, kMasterKey);
  const std::string_view in_master = master.resolve(view.piece);
  if (key == kMasterKey && in_master.empty()) return std::string(kModelKey);
  if (key == kModelKey && !in_master.empty()) {
    const TensorStore::Entry* narrow = model.find(model.resolve(view.piece));
    const TensorStore::Entry* wide = master.find(in_master);
    if (narrow != nullptr) require_floats(view.piece.name, *narrow);  // even if not read
    const auto bits_here = static_cast<int64_t>(view.tensor.element_size()) * 8;
    if (narrow != nullptr && bits_of(wide->dtype) > bits_of(narrow->dtype) && bits_here > bits_of(narrow->dtype)) {
      return std::string(kMasterKey);
    }
  }
  return key;
}

void append_list(std::vector<std::string>& parts, std::string_view title, const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  if (names.empty()) return;
  const size_t num_shown = std::min(kShown, names.size());
  parts.push_back(fmt::format("{} {}: {}{}", names.size(), title,
                              fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(num_shown), ", "),
                              names.size() > kShown ? ", …" : ""));
}

std::string value_of(const Configuration& configuration, std::string_view name) {
  const auto found = std::find_if(configuration.begin(), configuration.end(),
                                  [&](const auto& option) { return option.first == name; });
  return found == configuration.end() ? "" : plain_text(found->second);
}

std::string remedy_for_missing_state(const Configuration& stored, const Configuration& present) {
  const std::string was = value_of(stored, "optimizer"), is = value_of(present, "optimizer");
  if (!was.empty() && !is.empty() && was != is) {
    return fmt::format(
        "it was trained with --optimizer {} and this run has --optimizer {}, which keeps other state: go on with {}, "
        "or add --no_load_optim to start with a fresh optimizer",
        was, is, was);
  }
  return "it holds no optimizer state for these (perhaps it was written with --no_save_optim): add --no_load_optim to "
         "start with a fresh optimizer";
}

}  // namespace

void throw_unless_empty(const std::string& what, const std::vector<std::string>& missing,
                        const std::vector<std::string>& misshaped, const std::vector<std::string>& unexpected,
                        const std::string& remedy) {
  std::vector<std::string> parts;
  append_list(parts, "missing", missing);
  append_list(parts, "misshaped", misshaped);
  append_list(parts, "unexpected", unexpected);
  if (!parts.empty())
    throw UserError(fmt::format("{} does not fit the model: {}", what, fmt::join(parts, "; ")), remedy);
}

std::map<std::string, TensorStore> open_checkpoint(const fs::path& folder, const Manifest& manifest) {
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  std::map<std::string, TensorStore> stores;
  for (const StoredChunk& chunk : manifest.chunks) {
    std::shared_ptr<const SafetensorsFile>& file = files[chunk.file];
    if (!file) file = std::make_shared<const SafetensorsFile>(folder / chunk.file);
    const std::string entry_name = chunk_entry_name(chunk.name, chunk.shape, chunk.box);
    const SafetensorsTensor* tensor = file->find(entry_name);
    if (tensor == nullptr || tensor->dtype != chunk.dtype || tensor->shape != chunk.box.extent) {
      throw UserError(fmt::format("{}: {} is not what {} says", file->path().string(), entry_name, kManifestFile),
                      "the checkpoint is damaged: use another");
    }
    stores[chunk.key].add(chunk.name, chunk.shape, {.box = chunk.box, .stored = file->place(*tensor)});
  }
  return stores;
}

StoredCheckpoint open_checkpoint(const fs::path& folder) {
  Manifest manifest = load_manifest(folder);
  std::map<std::string, TensorStore> stores = open_checkpoint(folder, manifest);
  return {.folder = folder, .manifest = std::move(manifest), .stores = std::move(stores)};
}

Manifest load_checkpoint(const fs::path& folder, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings) {
  return load_checkpoint([&] { return open_checkpoint(folder); }, state, groups, settings);
}

Manifest load_checkpoint(const CheckpointOpener& open, CheckpointState& state, const Groups& groups,
                         const LoadSettings& settings) {
  Group& world = *groups.world;
  StoredCheckpoint opened;
  Manifest& manifest = opened.manifest;
  const std::map<std::string, TensorStore>& stores = opened.stores;
  struct Read {
    const TensorStore* store;
    std::vector<PieceView> views;
  };
  std::vector<Read> reads;
  std::set<std::string> used;  // by the stored model
  std::vector<std::string> missing, misshaped;
  std::set<const CheckpointTensor*> afresh;
  std::set<std::string> begun_afresh;
  bool lacks_optimizer = false;

  run_on_all(world, "checkpoint contents", [&] {
    opened = open();
    check_same_architecture(manifest.architecture, state.architecture, opened.folder.string());
    for (const CheckpointTensor& tensor : state.tensors) {
      if (!is_wanted(tensor, settings)) continue;
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range, tensor.form)) {
        if (tensor.is_passed_over) {
          used.merge(compare_with_store(store_of(stores, kModelKey), std::span(&view, 1)).used);
          continue;
        }
        const std::string key = source_key(stores, tensor.key, view);
        const TensorStore& store = store_of(stores, key);
        StoreFit fit = compare_with_store(store, std::span(&view, 1));
        if (tensor.is_optional && !(fit.missing.empty() && fit.misshaped.empty())) {
          begun_afresh.insert(tensor.key);
          afresh.insert(&tensor);
          continue;
        }
        const auto titled = [&](const std::string& text) {
          return is_weight(tensor.key) ? text : tensor.key + " " + text;
        };
        for (const std::string& name : fit.missing) missing.push_back(titled(name));
        for (const std::string& text : fit.misshaped) misshaped.push_back(titled(text));
        lacks_optimizer = lacks_optimizer || (!is_weight(tensor.key) && !fit.missing.empty());
        if (is_weight(tensor.key)) used.merge(fit.used);
        if (reads.empty() || reads.back().store != &store) reads.push_back({&store, {}});
        reads.back().views.push_back(std::move(view));
      }
    }
  });

  // Unexpected: used by no rank.
  for (const std::string& names : gather_texts(world, fmt::format("{}", fmt::join(used, "\n")), "checkpoint names")) {
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find('\n', begin), names.size());
      used.insert(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  run_on_all(world, "checkpoint fit", [&] {
    const auto drop_repeats = [](std::vector<std::string>& names) {
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
    };
    drop_repeats(missing);
    drop_repeats(misshaped);
    std::vector<std::string> unexpected;
    for (const auto& [name, entry] : store_of(stores, kModelKey).entries()) {
      if (!used.contains(name)) unexpected.push_back(name);
    }
    throw_unless_empty("the checkpoint " + opened.folder.string(), missing, misshaped, unexpected,
                       lacks_optimizer ? remedy_for_missing_state(manifest.configuration, state.configuration)
                                       : "give the architecture that the checkpoint was trained with");
  });
  run_on_all(world, "checkpoint read", [&] {
    for (const CheckpointTensor& tensor : state.tensors) {
      const bool is_read = is_wanted(tensor, settings) && !tensor.is_passed_over && !afresh.contains(&tensor);
      const bool has_padding = tensor.placement->num_local_elements() != tensor.placement->num_canonical_elements();
      if (is_read && has_padding) at::Tensor(tensor.local).zero_();
    }
    for (const Read& read : reads) read_pieces(*read.store, read.views, settings.nonfinite);
  });
  if (settings.begun_afresh != nullptr) *settings.begun_afresh = std::move(begun_afresh);
  state.train = manifest.train;
  return std::move(manifest);
}

}  // namespace megalith
