#include "foreign/foreign_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/configuration.h"
#include "checkpoint/folder_kind.h"
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/json.h"
#include "core/strings.h"
#include "foreign/foreign_source.h"
#include "models/architecture.h"
#include "models/families.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

const ForeignSource* const kSources[] = {&kTorchDist,  &kMegatronRanks, &kTorchtune,
                                         &kTorchtitan, &kDeepSpeed,     &kTrainerFolder};

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

// Names of one iteration's folder: Megatron-LM's, torchtitan's, transformers', DeepSpeed's, torchtune's.
constexpr std::string_view kFolderNames[] = {"iter_", "step-", "checkpoint-", "global_step", "epoch_", "step_"};

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
  std::string word = text.substr(0, text.find_first_of(" \n\r\t"));
  if (word != "release" && !iteration_of("iter_" + word)) {
    throw UserError(fmt::format("{} holds {}, not an iteration", file.string(),
                                dump_json(Json(word.substr(0, 40)))),
                    "write the iteration into it, or name the checkpoint with --ckpt_step");
  }
  return word;
}

}  // namespace

std::string_view name_of(ForeignKind kind) { return source_of(kind).name; }

bool holds_adapters(const ForeignFolder& found) {
  return found.kind == ForeignKind::kTrainer && is_adapter_folder(found.folder);
}

std::optional<ForeignFolder> find_foreign(const fs::path& path, std::optional<int64_t> step) {
  if (kind_of_folder(path) == FolderKind::kCheckpoint) return std::nullopt;  // ours, perhaps beside theirs
  const ForeignSource* here = source_in(path);
  const int64_t iteration_here = here != nullptr && step ? here->record(path).train.iteration : 0;
  if (here != nullptr && (!step || *step == iteration_here)) return ForeignFolder{here->kind, path};
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
  const auto release = in(path / "release");
  const bool is_tracked = !step && (release || !found.empty());
  const std::optional<std::string> newest = is_tracked ? tracked(path) : std::nullopt;
  if (newest == "release") return release;
  if (found.empty() && here != nullptr) {
    throw UserError(
        fmt::format("ckpt_step is {}, but {} is the checkpoint of iteration {}", *step, path.string(), iteration_here),
        "leave --ckpt_step away, or give the folder that holds the checkpoints to --load");
  }
  if (found.empty()) return std::nullopt;
  int64_t wanted = found.rbegin()->first;
  if (step) {
    wanted = *step;
  } else if (newest) {
    wanted = *iteration_of("iter_" + *newest);
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
                    "say it with the run's options or a folder with config.json (--load_hf DIR; convert: --hf_config DIR)");
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
  for (const auto& [key, store] : tensors.stores) keys.push_back(fmt::format("{} {}", key, store.entries().size()));
  for (const auto& [reason, names] : tensors.left_over) {
    const std::string more = names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "";
    left.push_back(fmt::format("{}{}: {}", names.front(), more, reason));
  }
  return fmt::format("{} of its tensors are read, as ours: {}{}", tensors.num_read, fmt::join(keys, ", "),
                     left.empty() ? "; none is left over" : fmt::format("; left over: {}", fmt::join(left, "; ")));
}

namespace {

// Canonical tensors of the model that a store lacks, wholly or in part.
std::vector<std::string> missing_in(const TensorStore& store, const CanonicalModel& model) {
  std::set<std::string> missing;
  for (const Placement* placement : model.placements()) {
    for (const Piece& piece : placement->pieces) {
      const TensorStore::Entry* found = store.find(piece.name);
      const bool is_whole = found != nullptr && found->shape == piece.shape &&
                            found->num_found() == Box::whole(piece.shape).num_elements();
      if (!is_whole) missing.insert(piece.name);
    }
  }
  return {missing.begin(), missing.end()};
}

// Tensors of `model` that another store lacks.
std::vector<std::string> missing_in(const TensorStore& store, const TensorStore& model) {
  std::vector<std::string> missing;
  for (const auto& [name, entry] : model.entries()) {
    if (store.find(name) == nullptr) missing.push_back(name);
  }
  return missing;
}

// UserError where the architecture that a checkpoint records differs; what it does not record is not compared.
void check_recorded_architecture(const ForeignFolder& found, const ForeignRecord& record, const ModelConfig& config) {
  if (!record.says_architecture()) return;
  std::set<std::string> recorded;
  bool is_padded = false;
  for (const auto& [name, text] : record.options) {
    recorded.insert(name);
    is_padded = is_padded || (name == "padded_vocab_size" && text == fmt::format("{}", config.vocab_size.value_or(0)));
  }
  Configuration stored = architecture_of(foreign_architecture(found, record));
  std::erase_if(stored, [&](const auto& option) {
    return !recorded.contains(option.first) || (is_padded && option.first == "vocab_size");
  });
  check_same_architecture(stored, architecture_of(config), found.folder.string());
}

void count_samples(const ForeignFolder& found, const ForeignSettings& settings, TrainState& train,
                   std::vector<std::string>& notes) {
  if (train.consumed_train_samples != kUnknownSamples) return;
  const std::string where = fmt::format("{} ({})", found.folder.string(), name_of(found.kind));
  if (settings.with_optimizer && !settings.global_batch_size) {
    throw UserError(fmt::format("{} does not say how many samples its {} iterations consumed", where, train.iteration),
                    "add --global_batch_size N, the samples of one iteration there, over all ranks");
  }
  const int64_t batch = settings.global_batch_size.value_or(0);
  if (__builtin_mul_overflow(train.iteration, batch, &train.consumed_train_samples)) {
    throw UserError(fmt::format("{} counts {} iterations, too many for this global_batch_size", where, train.iteration),
                    "the checkpoint is damaged: copy it again");
  }
  if (batch == 0 || train.iteration == 0) return;
  notes.push_back(fmt::format("{} does not say how many samples it consumed: {} iterations of {} (global_batch_size)",
                              where, train.iteration, batch));
}

}  // namespace

StoredCheckpoint open_foreign(const ForeignFolder& found, const ModelConfig& config, const ForeignSettings& settings,
                              std::vector<std::string>& notes) {
  ForeignRecord record = read_foreign_record(found);
  check_recorded_architecture(found, record, config);
  const std::string remedy = fmt::format("add --{} to take the weights only", settings.without_optimizer);
  if (settings.with_optimizer && !record.mixed_updates.empty()) {
    throw UserError(record.mixed_updates, "parameters share one count of updates here: " + remedy);
  }
  StoredCheckpoint stored{.folder = found.folder, .manifest = {}, .stores = {}};
  stored.manifest.train = std::move(record.train);
  stored.manifest.configuration = std::move(record.options);
  notes.insert(notes.end(), record.notes.begin(), record.notes.end());
  count_samples(found, settings, stored.manifest.train, notes);

  const CanonicalModel canonical(config);
  const bool are_adapters = holds_adapters(found);
  ForeignTensors tensors;
  if (are_adapters) {
    read_trainer_adapters(found.folder, canonical, tensors);
  } else {
    tensors = open_foreign_tensors(found, canonical);
  }
  const std::string report = report_of(tensors);
  notes.push_back(fmt::format("{} ({}): {}", found.folder.string(), name_of(found.kind), report));
  const auto store_of = [&](std::string_view key) -> const TensorStore& { return tensors.stores[std::string(key)]; };
  const std::string what = "the checkpoint " + found.folder.string();
  const auto missing_of = [&](std::string_view key) {
    return are_adapters ? missing_in(store_of(key), store_of(kModelKey)) : missing_in(store_of(key), canonical);
  };
  throw_unless_empty(what, missing_of(kModelKey), {}, {},
                     "copy the whole checkpoint; what was left over is of other names: " + report);
  if (settings.with_optimizer) {
    // Moments that are there for one parameter are there for all; AdamW's are there at all.
    std::set<std::string> keys = {"exp_avg", "exp_avg_sq"};
    if (!store_of("momentum_buffer").entries().empty()) keys = {"momentum_buffer"};
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      for (const std::string& name : missing_of(key)) missing.push_back(key + " " + name);
    }
    throw_unless_empty(
        what, missing, {}, {},
        fmt::format("its optimizer's state is not there, or in a form that is left over ({}): {}", report, remedy));
  }
  for (auto& [key, store] : tensors.stores) {
    // Exports of a wider dtype, and quantised ones, are made from the masters.
    const bool is_wanted = settings.with_optimizer || key == kModelKey ||
                           (key == kMasterKey && missing_of(key).empty());
    if (is_wanted && !store.entries().empty()) stored.stores.emplace(key, std::move(store));
  }
  return stored;
}

StoredModel open_stored_foreign(const ForeignFolder& found, const ForeignSettings& settings) {
  if (holds_adapters(found)) {
    throw UserError(fmt::format("{} holds adapters, not a model", found.folder.string()),
                    "train goes on with them: --load_hf MODEL --load DIR; convert makes them part of their model: "
                    "--load_hf MODEL --merge_adapter DIR --save_hf …");
  }
  const ForeignRecord record = read_foreign_record(found);
  ModelConfig config = foreign_architecture(found, record, settings.hf_config);
  std::vector<std::string> notes;
  if (settings.hf_config && record.says_architecture()) {
    notes.push_back(fmt::format("{} records its architecture: hf_config is ignored", found.folder.string()));
  }
  if (settings.global_batch_size && record.train.consumed_train_samples != kUnknownSamples) {
    notes.push_back(
        fmt::format("{} records its consumed samples: global_batch_size is ignored", found.folder.string()));
  }
  StoredCheckpoint stored = open_foreign(found, config, settings, notes);
  stored.manifest.architecture = architecture_of(config);
  stored.manifest.configuration = configuration_of(OptionSet(config));
  StoredModel model = stored_model(stored, settings.nonfinite);
  model.notes = std::move(notes);
  return model;
}

}  // namespace megalith
