#include "train/tracking.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "config/help.h"
#include "config/record.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "metrics/mlflow.h"
#include "metrics/wandb.h"
#include "storage/s3_settings.h"
#include "train/outputs.h"
#include "train/run_record.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdsFile = "tracking.json";
constexpr const char* kWandbId = "wandb_run_id";
constexpr const char* kMlflowId = "mlflow_run_id";

// True if the option's text is a JSON number or boolean.
bool is_json_value(const Option& option, const std::string& text) {
  const std::string type = option.type_text();
  if (type == "true or false") return text == "true" || text == "false";
  if (type != "integer" && type != "number") return false;
  char* end = nullptr;
  return std::isfinite(std::strtod(text.c_str(), &end)) && *end == '\0';
}

std::vector<TrackedOption> tracked_options(const OptionSet& options) {
  std::vector<TrackedOption> tracked;
  for (const auto& option : options.options()) {
    const std::string text = option->text();
    if (text == "null") continue;
    tracked.push_back({option->name(), plain_text(text), is_json_value(*option, text), option->is_default()});
  }
  return tracked;
}

// W&B gets every option in one record; MLflow, with a file per option, those that affect results and those that were
// set.
std::vector<TrackedOption> options_for_mlflow(const OptionSet& options) {
  std::vector<TrackedOption> all = tracked_options(options);
  std::erase_if(all, [&](const TrackedOption& option) {
    return option.is_default && !options.find(option.name)->traits().changes_numbers;
  });
  return all;
}

std::string header_value(const Resolved& resolved, const char* key) {
  const auto found = resolved.header.find(key);
  return found == resolved.header.end() ? "" : found->second;
}

// exp_name, else the name of the run's folder.
std::string name_of_run(const Resolved& resolved) {
  if (const std::string name = header_value(resolved, "exp_name"); !name.empty()) return name;
  if (!resolved.config.log.output_dir) return "";
  const fs::path folder = fs::absolute(*resolved.config.log.output_dir).lexically_normal();
  return (folder.filename().empty() ? folder.parent_path() : folder).filename().string();
}

// Primus's default.
std::string project_of(const Resolved& resolved) {
  if (const auto& project = resolved.config.tracking.wandb_project) return *project;
  const std::string group = header_value(resolved, "work_group"), user = header_value(resolved, "user_name");
  return group.empty() || user.empty() ? "megalith" : fmt::format("{}_{}", group, user);
}

// The tracked runs' ids, stored with the checkpoints to resume from.
class TrackedIds {
 public:
  TrackedIds(const Resolved& resolved, int64_t iteration) {
    const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
    if (!checkpoint.save || resolved.config.train.skip_train) return;
    file_ = fs::path(*checkpoint.save) / kIdsFile;
    if (iteration == 0 || !goes_on_in(checkpoint) || !fs::exists(file_)) return;
    const Json json = load_json(file_);
    for (const char* name : {kWandbId, kMlflowId}) {
      if (const auto id = json_find<std::string>(json, name, file_.string())) ids_[name] = *id;
    }
  }

  std::string earlier(const char* name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? "" : found->second;
  }
  void set(const char* name, const std::string& id) { ids_[name] = id; }
  // Drops an earlier run's in the same folder.
  void write() const {
    std::error_code ignored;
    if (file_.empty()) return;
    if (ids_.empty()) {
      fs::remove(file_, ignored);
      return;
    }
    make_directories(file_.parent_path());
    write_file_atomic(file_, dump_json_pretty(Json(ids_)));
  }

 private:
  fs::path file_;  // empty: the run cannot be resumed
  std::map<std::string, std::string> ids_;
};

TrackedRun tracked_run(const Resolved& resolved, const SinkSettings& settings) {
  TrackedRun run;
  run.resumed_after = settings.iteration;
  run.configuration = run_configuration(resolved);
  run.command = settings.command;
  run.commit = settings.commit;
  run.model = settings.model_text;
  return run;
}

}  // namespace

fs::path wandb_folder(const Config& config) {
  const std::optional<std::string>& folder = config.tracking.wandb_save_dir;
  const std::string beside = config.checkpoint.save.value_or(".");
  return fs::path(folder.value_or(is_object_url(beside) ? "." : beside)) / "wandb";
}

fs::path mlflow_folder(const Config& config) { return config.tracking.mlflow_dir.value_or("mlruns"); }

std::vector<std::unique_ptr<MetricsSink>> make_tracking_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                              Logger& log) {
  const TrackingOptions& options = resolved.config.tracking;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  if (!options.writes_wandb() && options.asks_for_wandb()) {
    log.note("disable_wandb is on: wandb_project is ignored");
  }
  if (!options.writes_mlflow() && options.asks_for_mlflow()) {
    log.note("disable_mlflow is on: MLflow's other options are ignored");
  }
  TrackedIds ids(resolved, settings.iteration);
  if (options.writes_wandb()) {
    TrackedRun run = tracked_run(resolved, settings);
    run.folder = wandb_folder(resolved.config);
    run.group = project_of(resolved);
    run.name = options.wandb_exp_name.value_or(name_of_run(resolved));
    run.entity = options.wandb_entity.value_or("");
    run.id = ids.earlier(kWandbId);
    run.options = tracked_options(*resolved.options);
    auto sink = std::make_unique<WandbSink>(run, resolved.config.log, log);
    ids.set(kWandbId, sink->id());
    sinks.push_back(std::move(sink));
  }
  if (options.writes_mlflow()) {
    TrackedRun run = tracked_run(resolved, settings);
    run.folder = mlflow_folder(resolved.config);
    run.group = options.mlflow_experiment_name.value_or("");
    run.name = options.mlflow_run_name.value_or(name_of_run(resolved));
    run.id = ids.earlier(kMlflowId);
    run.options = options_for_mlflow(*resolved.options);
    auto sink = std::make_unique<MlflowSink>(run, resolved.config.log, log);
    ids.set(kMlflowId, sink->id());
    sinks.push_back(std::move(sink));
  }
  ids.write();
  return sinks;
}

}  // namespace megalith
