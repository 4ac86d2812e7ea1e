#include "train/outputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "config/resolve.h"
#include "core/file.h"
#include "core/output_file.h"
#include "core/system_call.h"
#include "storage/object_mirror.h"
#include "train/config.h"
#include "train/tracking.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

struct Output {
  const Option* option;
  fs::path path;
  bool is_folder = false;
  std::string_view mark = {};  // of a replaceable file (core/output_file.h); empty: not replaced

  const std::string& name() const { return option->name(); }
};

std::vector<Output> outputs_of(const Resolved& resolved) {
  const Config& config = resolved.config;
  std::vector<Output> outputs;
  const auto add = [&](const auto& variable, const fs::path& path, bool is_folder, std::string_view mark = {}) {
    outputs.push_back({&resolved.options->of(variable), path, is_folder, mark});
  };
  const auto add_named = [&](const std::optional<std::string>& path, bool is_folder, std::string_view mark = {}) {
    if (path) add(path, *path, is_folder, mark);
  };
  add_named(config.log.output_dir, true);
  const bool is_stored = config.checkpoint.save && is_object_url(*config.checkpoint.save);  // tried in train/config.cc
  if (!config.train.skip_train && !is_stored) add_named(config.checkpoint.save, true);
  add_named(config.checkpoint.save_hf, true);
  add_named(config.checkpoint.save_adapter, true);
  add_named(config.log.log_file, false);
  add_named(config.log.record_file, false, kRunRecordMark);
  add_named(config.log.metrics_file, false, kMetricsMark);
  add_named(config.log.mlperf_log_file, false, kMlperfMark);
  add_named(config.log.loss_plot_file, false, kLossPlotMark);
  add_named(config.log.page_file, false, kPageMark);
  const RateFinderOptions& finder = config.train.rate_finder;
  if (finder.find_lr) add(finder.find_lr_file, finder.find_lr_file, false, kLossPlotMark);
  add_named(config.samples.sample_folder, true);
  if (config.log.writes_tensorboard()) add_named(config.log.tensorboard_dir, true);
  if (config.tracking.writes_wandb()) add(config.tracking.wandb_save_dir, wandb_folder(config), true);
  if (config.tracking.writes_mlflow()) add(config.tracking.mlflow_dir, mlflow_folder(config), true);
  const ProfileOptions& profile = config.profile;
  const fs::path traces = profile.folder(config.log.tensorboard_dir);
  if (profile.profile) add(profile.profile_dir, traces, true);
  if (profile.dump_pp_data) add(profile.dump_pp_data_dir, profile.dump_pp_data_dir.value_or(traces.string()), true);
  // A read-only cache is useful if others filled it.
  std::error_code ignored;
  if (config.data.data_cache_path && !fs::is_directory(*config.data.data_cache_path, ignored)) {
    add_named(config.data.data_cache_path, true);
  }
  return outputs;
}

constexpr std::string_view kProbePrefix = ".megalith_probe_";

std::optional<std::string> why_not_created_in(const fs::path& folder) {
  // Unique for each rank that probes.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const fs::path probe = folder / fmt::format("{}{}_{}", kProbePrefix, ::getpid(), now);
  const int fd =
      retry_interrupted([&] { return ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); });
  if (fd < 0) return system_error_text(errno);
  close_descriptor(fd);
  try_remove_tree(probe);
  return std::nullopt;
}

// Why an existing file cannot be appended to or replaced.
std::optional<std::string> why_not_opened(const fs::path& path) {
  const int fd = retry_interrupted([&] { return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC); });
  if (fd < 0) return system_error_text(errno);
  close_descriptor(fd);
  return std::nullopt;
}

// The folder, canonical if it exists, for comparison.
fs::path whole_path(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) whole = fs::absolute(path, error).lexically_normal();
  return whole.filename().empty() ? whole.parent_path() : whole;
}

bool lies_within(const fs::path& inner, const fs::path& outer) {
  const fs::path relative = whole_path(inner).lexically_relative(whole_path(outer));
  return !relative.empty() && *relative.begin() != "..";
}

bool is_same(const fs::path& one, const fs::path& other) { return whole_path(one) == whole_path(other); }

void check_checkpoints(Resolved& resolved, std::vector<UserError>& errors) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  if (!options.save || resolved.config.train.skip_train || goes_on_in(options)) return;
  std::error_code unreadable;
  if (!fs::is_directory(*options.save, unreadable)) return;
  const std::vector<int64_t> present = list_checkpoints(*options.save);
  if (present.empty()) return;
  if (options.overwrite) {
    resolved.derived.replaces_checkpoints = true;
    return;
  }
  errors.emplace_back(
      fmt::format(
          "save {}: it holds checkpoints of an earlier run, the newest of iteration {}, and this run does not go "
          "on from them",
          resolved.config.checkpoint.save.value_or(*options.save), present.back()),
      fmt::format("go on with --load {}, replace them with --overwrite, or name another folder",
                  resolved.config.checkpoint.save.value_or(*options.save)));
}

void check_export(const Resolved& resolved, const std::vector<Output>& outputs, std::vector<UserError>& errors) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  if (!options.save_hf) return;
  const fs::path folder = *options.save_hf;
  if (options.load_hf && lies_within(*options.load_hf, folder)) {
    errors.emplace_back(fmt::format("save_hf {}: the model is read from there (load_hf {})", folder.string(),
                                    resolved.config.checkpoint.load_hf.value_or(*options.load_hf)),
                        "name another folder for the model that is trained");
    return;
  }
  // The folder is replaced when the model is complete.
  for (const Output& other : outputs) {
    if (other.option == &resolved.options->of(resolved.config.checkpoint.save_hf) || !lies_within(other.path, folder))
      continue;
    errors.emplace_back(fmt::format("save_hf {}: {} {} lies in it", folder.string(), other.name(), other.path.string()),
                        "give the exported model a folder of its own");
  }
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::is_empty(folder, ignored)) return;
  if (!is_exported_model(folder)) {
    errors.emplace_back(fmt::format("save_hf {}: it exists and is not a Hugging Face model", folder.string()),
                        "choose another name, or remove it");
  } else if (!options.overwrite && !goes_on_in(options)) {
    errors.emplace_back(fmt::format("save_hf {}: it holds a model already", folder.string()),
                        "replace it with --overwrite, or name another folder");
  }
}

void check_adapter_export(const Resolved& resolved, std::vector<UserError>& errors) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  if (!options.save_adapter) return;
  const fs::path folder = *options.save_adapter;
  std::error_code ignored;
  if (!resolved.config.lora.enabled) {
    errors.emplace_back("save_adapter is set, but lora.enabled is not: there are no adapters",
                        "leave save_adapter out, or set lora.enabled");
  } else if (options.adapter && is_same(*options.adapter, folder)) {
    errors.emplace_back(fmt::format("save_adapter {}: the adapters are read from there (adapter)", folder.string()),
                        "name another folder for those that are trained");
  } else if (fs::is_directory(folder, ignored) && !fs::is_empty(folder, ignored)) {
    if (!is_adapter_folder(folder)) {
      errors.emplace_back(fmt::format("save_adapter {}: it exists and holds no adapters", folder.string()),
                          "choose another name, or remove it");
    } else if (!options.overwrite && !goes_on_in(options)) {
      errors.emplace_back(fmt::format("save_adapter {}: it holds adapters already", folder.string()),
                          "replace them with --overwrite, or name another folder");
    }
  }
}

void check_run_folder(const Resolved& resolved, std::vector<UserError>& errors) {
  const std::optional<std::string>& root = resolved.config.log.output_dir;
  if (resolved.config.checkpoint.export_hf && !root) {
    errors.emplace_back("export_hf is set, but output_dir is not", "name the folder of the model with --save_hf");
  }
  std::error_code ignored;
  if (!root || !fs::is_directory(*root, ignored) || fs::is_empty(*root, ignored)) return;
  const RunFolder folder{*root};
  if (fs::exists(folder.record(), ignored)) return;
  // A run that failed on starting leaves less.
  const std::array own = {folder.lock(),   folder.configuration(), folder.log(),         folder.metrics(),
                          folder.page(),   folder.plot(),          folder.tensorboard(), folder.wandb(),
                          folder.mlflow(), folder.checkpoints(),   folder.exported()};
  bool has_other = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(*root, ignored)) {
    // Other ranks of this run may be probing.
    const bool is_probe = entry.path().filename().string().starts_with(kProbePrefix);
    has_other = has_other || (!is_probe && std::find(own.begin(), own.end(), entry.path()) == own.end());
  }
  if (!has_other) return;
  errors.emplace_back(fmt::format("output_dir {}: it exists, holds files and is not the folder of a run", *root),
                      "name a folder that does not exist yet, or one that an earlier run made");
}

// True if the option's value, or the file that set it, is this file.
bool is_read_by(const Option& option, const fs::path& file) {
  std::error_code ignored;
  const auto is_it = [&](const std::string& path) { return fs::equivalent(path, file, ignored); };
  // "recipe.yaml:31"
  const auto& [layer, where] = option.source();
  const bool is_of_file = layer == OptionLayer::kPreset || layer == OptionLayer::kFile;
  if (is_of_file && is_it(where.substr(0, where.rfind(':')))) return true;
  const std::vector<std::string> words = option.words_of_value();
  return std::ranges::any_of(words, [&](const std::string& word) {
    // Rows may be a part of a file, and prepared data have a prefix.
    return is_it(word) || is_it(word.substr(0, word.rfind('['))) || is_it(word + ".bin") || is_it(word + ".idx");
  });
}

// A run's inputs are not written, also with overwrite.
void check_inputs_stay(const Resolved& resolved, const std::vector<Output>& outputs, std::vector<UserError>& errors) {
  std::error_code ignored;
  for (const Output& output : outputs) {
    if (output.is_folder || !fs::is_regular_file(output.path, ignored)) continue;
    for (const auto& option : resolved.options->options()) {
      const bool is_output = std::ranges::find(outputs, option.get(), &Output::option) != outputs.end();
      if (is_output || !option->is_set() || !is_read_by(*option, output.path)) continue;
      errors.emplace_back(fmt::format("{} {}: the run reads this file ({})", output.name(), output.path.string(),
                                      option->source().layer == OptionLayer::kFile ? option->source().where
                                                                                   : option->name()),
                          "name another file");
      break;
    }
  }
}

// Two outputs in one file would destroy each other.
void check_shared_names(const std::vector<Output>& outputs, std::vector<UserError>& errors) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (outputs[i].is_folder && outputs[j].is_folder) continue;
      if (!is_same(outputs[i].path, outputs[j].path)) continue;
      std::error_code ignored;
      if (fs::exists(outputs[i].path, ignored) && !fs::is_regular_file(outputs[i].path, ignored))
        continue;  // /dev/null
      errors.emplace_back(
          fmt::format("{} and {} are both {}", outputs[j].name(), outputs[i].name(), outputs[i].path.string()),
          "name a file for each");
    }
  }
}

}  // namespace

bool goes_on_in(const CheckpointOptions& options) {
  if (!options.load || !options.save) return false;
  return is_same(*options.load, *options.save) || (fs::exists(fs::path(*options.load) / kManifestFile) &&
                                                   is_same(fs::path(*options.load).parent_path(), *options.save));
}

std::vector<std::pair<std::string, std::string>> held_folders(const Config& config) {
  std::vector<std::pair<std::string, std::string>> folders;
  const std::optional<std::string>&root = config.log.output_dir, &save = config.checkpoint.save;
  if (root) folders.emplace_back("output_dir", *root);
  if (save && !config.train.skip_train && !(root && is_same(*root, *save))) {
    folders.emplace_back("save", local_path(*save));
  }
  return folders;
}

void place_run_folder(OptionSet& options, const Resolution& resolution) {
  if (!resolution.header.contains("workspace")) return;
  fs::path folder;
  for (const char* key : {"workspace", "work_group", "user_name", "exp_name"}) {
    if (const auto found = resolution.header.find(key); found != resolution.header.end()) folder /= found->second;
  }
  const std::string file = resolution.config_file ? resolution.config_file->string() : "";
  apply_values(options, {{"output_dir", folder.string()}}, {OptionLayer::kPreset, fmt::format("{}: workspace", file)});
}

void place_outputs(OptionSet& options, const Config& config) {
  if (!config.log.output_dir) return;
  const RunFolder folder{*config.log.output_dir};
  const auto place = [&](const std::optional<std::string>& variable, const fs::path& path) {
    options.of(variable).offer(WrittenValue::of(path.string()), {OptionLayer::kModel, "output_dir"});
  };
  place(config.checkpoint.save, folder.checkpoints());
  place(config.log.log_file, folder.log());
  place(config.log.metrics_file, folder.metrics());
  place(config.log.page_file, folder.page());
  place(config.log.loss_plot_file, folder.plot());
  place(config.log.tensorboard_dir, folder.tensorboard());
  if (config.checkpoint.export_hf) place(config.checkpoint.save_hf, folder.exported());
  if (config.tracking.writes_wandb()) place(config.tracking.wandb_save_dir, folder.root);
  if (config.tracking.writes_mlflow()) place(config.tracking.mlflow_dir, folder.mlflow());
}

void continue_automatically(Resolved& resolved) {
  CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  const bool has_run_folder = resolved.config.log.output_dir.has_value();
  if (!checkpoint.auto_continue_train && (!has_run_folder || checkpoint.overwrite)) return;
  if (!checkpoint.save || list_checkpoints(*checkpoint.save).empty()) return;
  checkpoint.load = checkpoint.save;
  // These concern the checkpoint that the run began from.
  checkpoint.finetune = checkpoint.no_load_optim = false;
  checkpoint.ckpt_step.reset();
  resolved.notes.push_back(fmt::format(
      "{}: loading from {}", checkpoint.auto_continue_train ? "auto_continue_train" : "output_dir",
                                       resolved.config.checkpoint.save.value_or(*checkpoint.save)));
}

std::optional<UserError> check_writable(const std::string& option, const fs::path& path, bool is_folder) {
  const std::string where = fmt::format("{} {}", option, path.string());
  const std::string remedy = fmt::format("name a {} that can be written", is_folder ? "folder" : "file");
  if (path.empty()) return UserError(fmt::format("{} is empty", option), remedy);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status)) {
    if (is_folder != fs::is_directory(status)) {
      return UserError(fmt::format("{}: it is a {}", where, is_folder ? "file" : "folder"), remedy);
    }
    // Pipes wait for readers; devices are not replaced.
    if (!is_folder && !fs::is_regular_file(status)) return std::nullopt;
    const auto reason = is_folder ? why_not_created_in(path) : why_not_opened(path);
    if (reason) return UserError(fmt::format("{}: {}", where, *reason), remedy);
    return std::nullopt;
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    return UserError(fmt::format("{}: {}", where, error.message()), remedy);
  }
  fs::path nearest = fs::absolute(path, error).parent_path();
  if (path.filename().empty()) nearest = nearest.parent_path();  // "run/"
  while (nearest.has_relative_path() && !fs::exists(fs::status(nearest, error))) nearest = nearest.parent_path();
  if (!fs::is_directory(nearest, error)) {
    return UserError(fmt::format("{}: {} is a file, so there can be no folder of this name", where, nearest.string()),
                     remedy);
  }
  if (const auto reason = why_not_created_in(nearest)) {
    return UserError(fmt::format("{}: nothing can be made in {}: {}", where, nearest.string(), *reason), remedy);
  }
  return std::nullopt;
}

std::vector<UserError> check_outputs(Resolved& resolved) {
  std::vector<UserError> errors;
  const std::vector<Output> outputs = outputs_of(resolved);
  for (const Output& output : outputs) {
    // Outputs in a run's folder fail with it.
    const bool is_part = output.option->source().where == "output_dir";
    if (is_part && !errors.empty() && errors.front().message().starts_with("output_dir")) continue;
    auto error = check_writable(output.name(), output.path, output.is_folder);
    if (!error && !is_part && !output.mark.empty()) {
      error = check_replaceable(output.name(), output.path, output.mark, resolved.config.checkpoint.overwrite);
    }
    if (error) errors.push_back(std::move(*error));
  }
  const ProfileOptions& profile = resolved.config.profile;
  if (profile.dump_pp_data) {
    const fs::path folder =
        profile.dump_pp_data_dir.value_or(profile.folder(resolved.config.log.tensorboard_dir).string());
    const fs::path file = folder / "pipeline_trace.json";
    auto taken = check_replaceable("dump_pp_data_dir", file, kPipelineTraceMark, resolved.config.checkpoint.overwrite);
    if (taken) errors.push_back(std::move(*taken));
  }
  check_shared_names(outputs, errors);
  check_inputs_stay(resolved, outputs, errors);
  check_run_folder(resolved, errors);
  check_checkpoints(resolved, errors);
  check_export(resolved, outputs, errors);
  check_adapter_export(resolved, errors);
  return errors;
}

}  // namespace megalith
