#include "foreign/foreign_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/folder_kind.h"
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/strings.h"
#include "foreign/foreign_source.h"
#include "models/architecture.h"
#include "models/families.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

const ForeignSource* const kSources[] = {&kTorchDist, &kMegatronRanks, &kTorchtitan, &kTrainerFolder};

const ForeignSource& source_of(ForeignKind kind) {
  for (const ForeignSource* source : kSources) {
    if (source->kind == kind) return *source;
  }
  MEGALITH_CHECK(false, "a kind of foreign checkpoint without a source");
}

const ForeignSource* source_in(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return nullptr;
  for (const ForeignSource* source : kSources) {
    if (source->is_here(folder)) return source;
  }
  return nullptr;
}

// Names of one iteration's folder: Megatron-LM's, torchtitan's, transformers'.
constexpr std::string_view kFolderNames[] = {"iter_", "step-", "checkpoint-"};

std::optional<int64_t> iteration_of(std::string_view name) {
  for (const std::string_view beginning : kFolderNames) {
    if (!name.starts_with(beginning)) continue;
    const std::string_view digits = name.substr(beginning.size());
    int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size() && number >= 0) return number;
  }
  return std::nullopt;
}

// Megatron-LM's last checkpoint: a number, or "release".
std::optional<std::string> tracked(const fs::path& path) {
  const fs::path file = path / "latest_checkpointed_iteration.txt";
  if (!fs::exists(file)) return std::nullopt;
  const std::string text = read_file(file);
  return text.substr(0, text.find_first_of(" \n\r\t"));
}

}  // namespace

std::string_view name_of(ForeignKind kind) { return source_of(kind).name; }

std::optional<ForeignFolder> find_foreign(const fs::path& path, std::optional<int64_t> step) {
  if (const ForeignSource* source = source_in(path)) return ForeignFolder{source->kind, path};
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return std::nullopt;
  const auto in = [&](const fs::path& folder) -> std::optional<ForeignFolder> {
    const ForeignSource* source = source_in(folder);
    if (source == nullptr) return std::nullopt;
    return ForeignFolder{source->kind, folder};
  };
  std::map<int64_t, ForeignFolder> found;
  for (const std::string& name : names_in(path)) {
    const auto iteration = iteration_of(name);
    if (!iteration) continue;
    if (const auto one = in(path / name)) found.emplace(*iteration, *one);
  }
  const std::optional<std::string> newest = tracked(path);
  if (!step && newest == "release") return in(path / "release");
  if (found.empty()) return std::nullopt;
  int64_t wanted = found.rbegin()->first;
  if (step) {
    wanted = *step;
  } else if (newest) {
    std::from_chars(newest->data(), newest->data() + newest->size(), wanted);
  }
  const auto chosen = found.find(wanted);
  if (chosen == found.end()) {
    throw UserError(fmt::format("{} has no checkpoint of iteration {}{}", path.string(), wanted,
                                step ? " (ckpt_step)" : ", which latest_checkpointed_iteration.txt names"),
                    fmt::format("in it: {}", entries_text(path)));
  }
  return chosen->second;
}

ForeignRecord read_foreign_record(const ForeignFolder& found) { return source_of(found.kind).record(found.folder); }

bool ForeignRecord::says_architecture() const {
  return std::any_of(options.begin(), options.end(), [](const auto& option) { return option.first == "num_layers"; });
}

ModelConfig foreign_architecture(const ForeignFolder& found, const ForeignRecord& record,
                                 const std::optional<std::string>& hf_config) {
  if (hf_config && !record.says_architecture()) return read_hf_config(*hf_config).config;
  ModelConfig config;
  const OptionSet options(config);
  for (const auto& [name, text] : record.options) {
    Option* option = options.find(name);
    if (option == nullptr) continue;
    try {
      option->set(plain_text(text), {OptionLayer::kModel, found.folder.string()});
    } catch (const UserError&) {
      if (option->traits().changes_weights) throw;
    }
  }
  if (config.num_layers == 0 || config.hidden_size == 0) {
    throw UserError(fmt::format("{} ({}) does not record its architecture", found.folder.string(), name_of(found.kind)),
                    "give a folder with the model's config.json: convert --load DIR --hf_config DIR");
  }
  if (config.has_vocabulary() && !config.vocab_size) {
    throw UserError(fmt::format("{} ({}) records neither vocab_size nor padded_vocab_size", found.folder.string(),
                                name_of(found.kind)),
                    "export it to Hugging Face's format with the tools of its trainer, for --load_hf");
  }
  return config;
}

ForeignTensors open_foreign_tensors(const ForeignFolder& found, const CanonicalModel& model) {
  ForeignTensors tensors;
  source_of(found.kind).read(found.folder, model, tensors);
  return tensors;
}

std::string report_of(const ForeignTensors& tensors) {
  std::vector<std::string> keys, left;
  for (const auto& [key, store] : tensors.stores) keys.push_back(fmt::format("{} {}", key, store.size()));
  for (const auto& [reason, names] : tensors.left_over) {
    const std::string more = names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "";
    left.push_back(fmt::format("{}{}: {}", names.front(), more, reason));
  }
  return fmt::format("{} of its tensors are read, as ours: {}{}", tensors.num_read, fmt::join(keys, ", "),
                     left.empty() ? "; none is left over" : fmt::format("; left over: {}", fmt::join(left, "; ")));
}

namespace {

void add_to_model(StoredModel& model, const std::string& key, const std::string& name, const CanonicalTensor& tensor,
                  NonfiniteWeights nonfinite) {
  for (const CanonicalTensor::Part& part : tensor.parts) {
    const at::Tensor view = part.stored.view();
    if (!view.is_floating_point()) {
      throw UserError(fmt::format("{}: {} is of type {}, expected floating-point numbers",
                                  part.stored.file->path().string(), name, name_of(part.stored.dtype)),
                      "the file is damaged, or of another model");
    }
    if (nonfinite == NonfiniteWeights::kRefused) require_finite(name, view, part.box.offset, part.stored.file->path());
    Placement placement{.local_shape = part.box.extent};
    placement.pieces.push_back(
        {.name = name, .shape = tensor.shape, .canonical = part.box, .local = Box::whole(part.box.extent)});
    model.placements.push_back(std::move(placement));
    model.state.tensors.push_back({.key = key, .placement = &model.placements.back(), .local = view});
  }
}

// Canonical tensors of the model that a store lacks, wholly or in part.
std::vector<std::string> missing_in(const CanonicalStore& store, const CanonicalModel& model) {
  std::set<std::string> missing;
  for (const Placement* placement : model.placements()) {
    for (const Piece& piece : placement->pieces) {
      const auto found = store.find(piece.name);
      const bool is_whole = found != store.end() && found->second.shape == piece.shape &&
                            found->second.num_found() == Box::whole(piece.shape).num_elements();
      if (!is_whole) missing.insert(piece.name);
    }
  }
  return {missing.begin(), missing.end()};
}

}  // namespace

StoredModel open_stored_foreign(const ForeignFolder& found, const ForeignSettings& settings) {
  ForeignRecord record = read_foreign_record(found);
  StoredModel model;
  model.folder = found.folder;
  model.config = foreign_architecture(found, record, settings.hf_config);
  model.family = &family_for(model.config);
  if (settings.hf_config && record.says_architecture()) {
    record.notes.push_back(fmt::format("{} records its architecture: hf_config is ignored", found.folder.string()));
  }
  if (settings.global_batch_size && record.train.consumed_train_samples != kUnknownSamples) {
    record.notes.push_back(
        fmt::format("{} records its consumed samples: global_batch_size is ignored", found.folder.string()));
  }
  if (settings.with_optimizer && !record.mixed_updates.empty()) {
    throw UserError(record.mixed_updates,
                    "parameters share one count of updates here: add --no_save_optim to take the weights only");
  }
  model.state.train = std::move(record.train);
  if (model.state.train.consumed_train_samples == kUnknownSamples) {
    if (settings.with_optimizer && !settings.global_batch_size) {
      throw UserError(fmt::format("{} ({}) does not say how many samples its {} iterations consumed",
                                  found.folder.string(), name_of(found.kind), model.state.train.iteration),
                      "add --global_batch_size N, the samples of one iteration there, over all ranks");
    }
    if (__builtin_mul_overflow(model.state.train.iteration, settings.global_batch_size.value_or(0),
                               &model.state.train.consumed_train_samples)) {
      throw UserError(fmt::format("{} counts {} iterations, too many for this global_batch_size",
                                  found.folder.string(), model.state.train.iteration),
                      "the checkpoint is damaged: copy it again");
    }
  }
  model.state.architecture = architecture_of(model.config);
  ModelConfig recorded = model.config;
  model.state.configuration = configuration_of(OptionSet(recorded));
  model.notes = std::move(record.notes);

  const CanonicalModel canonical(model.config);
  const ForeignTensors tensors = open_foreign_tensors(found, canonical);
  model.notes.push_back(fmt::format("{} ({}): {}", found.folder.string(), name_of(found.kind), report_of(tensors)));
  const auto store_of = [&](std::string_view key) -> const CanonicalStore& {
    static const CanonicalStore empty;
    const auto store = tensors.stores.find(std::string(key));
    return store == tensors.stores.end() ? empty : store->second;
  };
  throw_unless_empty("the checkpoint " + found.folder.string(), missing_in(store_of(kModelKey), canonical), {}, {},
                     "copy the whole checkpoint; what was left over is of other names: " + report_of(tensors));
  if (settings.with_optimizer) {
    // Moments that are there for one parameter are there for all; AdamW's are there at all.
    std::set<std::string> keys = {"exp_avg", "exp_avg_sq"};
    if (!store_of("momentum_buffer").empty()) keys = {"momentum_buffer"};
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      for (const std::string& name : missing_in(store_of(key), canonical)) missing.push_back(key + " " + name);
    }
    throw_unless_empty("the checkpoint " + found.folder.string(), missing, {}, {},
                       "its optimizer's state is not there, or in a form that is left over (" + report_of(tensors) +
                           "): add --no_save_optim to take the weights only");
  }
  for (const auto& [key, store] : tensors.stores) {
    // Exports of a wider dtype, and quantised ones, are made from the masters.
    const bool is_wanted = settings.with_optimizer || key == kModelKey ||
                           (key == kMasterKey && missing_in(store, canonical).empty());
    if (!is_wanted) continue;
    for (const auto& [name, tensor] : store) add_to_model(model, key, name, tensor, settings.nonfinite);
  }
  return model;
}

}  // namespace megalith
