#include "train/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/resume.h"
#include "core/collect_errors.h"
#include "data/blend.h"
#include "data/indexed_dataset.h"
#include "data/prepared_outputs.h"
#include "tensor_files/safetensors.h"
#include "train/foreign_load.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

bool holds_checkpoint_here(const fs::path& path) { return kind_of_folder(path) == FolderKind::kCheckpoint; }

// A checkpoint's manifest and its files' headers.
void open_headers(const fs::path& folder) {
  const Manifest manifest = load_manifest(folder);
  std::set<std::string> files;
  for (const StoredChunk& chunk : manifest.chunks) files.insert(chunk.file);
  for (const std::string& file : files) {
    std::error_code error;
    if (!fs::exists(folder / file, error)) throw UserError(fmt::format("{} is missing", (folder / file).string()));
    const SafetensorsFile opened(folder / file);
  }
}

// Like find_checkpoint() without reading tensors: the newest that opens, or the given step's.
void open_some_checkpoint(const fs::path& root, std::optional<int64_t> step) {
  if (fs::exists(root / kManifestFile)) return open_headers(root);
  std::vector<int64_t> iterations = list_checkpoints(root);
  if (step) {
    const bool has_step = std::find(iterations.begin(), iterations.end(), *step) != iterations.end();
    if (!has_step) {
      throw UserError(fmt::format("{} has no checkpoint of iteration {} (ckpt_step)", root.string(), *step),
                      fmt::format("in it: {}", entries_text(root)));
    }
    return open_headers(checkpoint_folder(root, *step));
  }
  std::optional<UserError> newest_fault;
  for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration) {
    try {
      return open_headers(checkpoint_folder(root, *iteration));
    } catch (const UserError& error) {
      if (!newest_fault) newest_fault = error;
    }
  }
  if (newest_fault) {
    throw UserError(fmt::format("no intact checkpoint in {}: {}", root.string(), newest_fault->message()),
                    newest_fault->remedy());
  }
}

}  // namespace

void check_weight_paths(const Resolved& resolved, bool must_be_there) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  std::vector<UserError> errors;
  const auto keep = [&](std::optional<UserError> error) {
    if (error) errors.push_back(std::move(*error));
  };
  const auto foreign = foreign_load(resolved);
  const bool has_load = foreign || (options.load && holds_checkpoint_here(*options.load));
  if (foreign && loads_where_it_saves(options)) {
    throw UserError(fmt::format("save {}: the folder holds checkpoints of another trainer ({}), which ours would join",
                                *options.save, name_of(foreign->kind)),
                    "give a folder of its own to --save; --auto_continue_train goes on from there after a restart");
  }
  if (options.load && !has_load) {
    const bool may_be_absent = !must_be_there && !options.exit_on_missing_checkpoint;
    const bool begins_here = may_be_absent && loads_where_it_saves(options);
    const bool is_missing = kind_of_folder(*options.load) == FolderKind::kMissing;
    std::optional<UserError> error;
    if (!begins_here || !is_missing) error = check_checkpoint_path("load", *options.load, may_be_absent);
    if (error && options.exit_on_missing_checkpoint) {
      error =
          UserError(error->message(), error->remedy() + "; exit_on_missing_checkpoint is on, so no run begins afresh");
    }
    keep(error);
  }
  if (options.pretrained_checkpoint && !has_load && !foreign_pretrained(resolved)) {
    keep(check_checkpoint_path("pretrained_checkpoint", *options.pretrained_checkpoint, /*may_be_absent=*/false));
  }
  if (options.load_hf) keep(check_hf_path("load_hf", *options.load_hf));
  throw_if_any(errors);
}

std::vector<UserError> check_weights(Resolved& resolved) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  std::vector<UserError> errors;
  const auto is_found = [](const std::optional<std::string>& path) { return path && holds_checkpoint_here(*path); };
  const bool is_dry = resolved.config.train.dry_run;
  if (const auto foreign = foreign_load(resolved)) {
    // Without a vocabulary there is another error.
    if (!is_dry || resolved.derived.vocab_size <= 0) return errors;
    const bool with_optimizer = !options.no_load_optim && !options.finetune;
    collect(errors, [&] { open_foreign_load(*foreign, resolved, with_optimizer, resolved.notes); });
    return errors;
  }
  if (is_found(options.load)) {
    if (is_dry) collect(errors, [&] { open_some_checkpoint(*options.load, options.ckpt_step); });
    return errors;
  }
  if (const auto foreign = foreign_pretrained(resolved)) {
    if (is_dry && resolved.derived.vocab_size > 0) {
      collect(errors, [&] { open_foreign_load(*foreign, resolved, /*with_optimizer=*/false, resolved.notes); });
    }
    return errors;
  }
  if (is_found(options.pretrained_checkpoint)) {
    if (is_dry) collect(errors, [&] { open_some_checkpoint(*options.pretrained_checkpoint, std::nullopt); });
    return errors;
  }
  for (UserError& error : resolved.kind().check_weights(resolved)) errors.push_back(std::move(error));
  // A hub model's weights are fetched last.
  const bool is_path = options.load_hf && options.load_hf == resolved.config.checkpoint.load_hf;
  if (is_path) collect(errors, [&] { open_hf_weights(*options.load_hf); });
  return errors;
}

std::vector<UserError> check_data(Resolved& resolved) {
  if (resolved.config.data.mock_data) return {};
  return resolved.kind().check_data(resolved);
}

std::vector<UserError> no_data(Resolved& resolved) {
  const UserError error = no_data_error();
  if (!resolved.config.train.dry_run) return {error};
  resolved.notes.push_back(fmt::format("{}: a run would be refused; {}", error.message(), error.remedy()));
  return {};
}

void append_other_tokenizers(const Resolved& resolved, std::vector<UserError>& errors) {
  if (resolved.tokenizer == nullptr || resolved.config.data.allow_other_tokenizer) return;
  std::map<int64_t, std::string> digests;
  const auto look_at = [&](const std::string& path) {
    if (auto other = find_other_tokenizer(data_prefix(path), *resolved.tokenizer, digests)) errors.push_back(*other);
  };
  if (resolved.config.task.titles_data_path) look_at(*resolved.config.task.titles_data_path);
  try {
    const DataOptions data = with_listed_paths(resolved.config.data);
    for (const auto* items : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path}) {
      for (const std::string& prefix : parse_blend(*items, "data_path").prefixes) look_at(prefix);
    }
  } catch (const UserError&) {  // unreadable lists are reported by their readers
  }
}

}  // namespace megalith
