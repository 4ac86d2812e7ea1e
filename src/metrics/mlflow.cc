#include "metrics/mlflow.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/yaml_document.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/host.h"
#include "core/json.h"
#include "core/log.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeta = "meta.yaml";
constexpr const char* kDefaultExperiment = "Default";  // number 0
// mlflow.entities.RunStatus.
constexpr int kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5;
constexpr int kLocalSource = 4;  // mlflow.entities.SourceType

// Quoted JSON is YAML.
std::string yaml_text(const std::string& text) { return dump_json(Json(text)); }

std::string file_uri(const fs::path& path) {
  std::string uri = "file://";
  for (const char c : fs::absolute(path).lexically_normal().string()) {
    const auto byte = static_cast<unsigned char>(c);
    const bool stays = std::isalnum(byte) != 0 || std::string_view("/-_.~").find(c) != std::string_view::npos;
    uri += stays ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

// A top-level value; "" if unreadable.
std::string meta_value(const fs::path& file, std::string_view key) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return "";
  const YamlDocument document = load_yaml(file, {});
  const YamlNode* value = document.root.is_map() ? document.root.find(key) : nullptr;
  return value != nullptr && value->is_scalar() ? value->text : "";
}

std::string with_meta_value(const std::string& meta, const std::string& key, const std::string& value) {
  const std::string line = fmt::format("{}: {}\n", key, value);
  size_t begin = 0;
  while (begin < meta.size() && meta.compare(begin, key.size() + 1, key + ":") != 0) {
    begin = std::min(meta.find('\n', begin), meta.size() - 1) + 1;
  }
  const size_t end = begin < meta.size() ? std::min(meta.find('\n', begin), meta.size() - 1) + 1 : begin;
  return meta.substr(0, begin) + line + meta.substr(end);
}

std::vector<fs::path> folders_in(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const bool is_hidden = entry.path().filename().string().starts_with('.');  // .trash
    if (!is_hidden && entry.is_directory(ignored)) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

void make_experiment(const fs::path& folder, const std::string& name) {
  const int64_t now_ms = unix_time_ms();
  make_directories(folder);
  write_file_atomic(folder / kMeta,
                    fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
                                "lifecycle_stage: active\nname: {}\n",
                                file_uri(folder), now_ms, folder.filename().string(), now_ms, yaml_text(name)));
}

// Created if missing. Its number follows from its name: runs starting together make the same one.
fs::path find_or_make_experiment(const fs::path& store, const std::string& name) {
  std::error_code ignored;
  const bool has_default = fs::exists(store / "0" / kMeta, ignored) || fs::exists(store / ".trash" / "0", ignored);
  if (!has_default) make_experiment(store / "0", kDefaultExperiment);
  for (const fs::path& folder : folders_in(store)) {
    if (meta_value(folder / kMeta, "name") == name) return folder;
  }
  constexpr uint64_t kLeast = 100'000'000'000'000'000;  // 18 digits, as MLflow's
  uint64_t number = kLeast + checksum64(name) % (9 * kLeast);
  while (fs::exists(store / std::to_string(number), ignored) ||
         fs::exists(store / ".trash" / std::to_string(number), ignored))
    ++number;
  fs::path folder = store / std::to_string(number);
  make_experiment(folder, name);
  return folder;
}

std::optional<fs::path> find_run(const fs::path& store, const std::string& id) {
  std::error_code ignored;
  for (const fs::path& experiment : folders_in(store)) {
    if (fs::exists(experiment / id / kMeta, ignored)) return experiment / id;
  }
  return std::nullopt;
}

// Null for a truncated line.
std::optional<int64_t> iteration_of(const std::string& line) {
  const std::vector<std::string> words = split_words(line);
  int64_t iteration = 0;
  if (words.size() != 3) return std::nullopt;
  const auto [end, error] = std::from_chars(words[2].data(), words[2].data() + words[2].size(), iteration);
  if (error != std::errc() || end != words[2].data() + words[2].size()) return std::nullopt;
  return iteration;
}

// Removes later iterations, to be repeated, and a killed run's partial line.
void cut_metric(const fs::path& file, int64_t last_iteration) {
  const std::string text = read_file(file);
  std::string kept;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const std::optional<int64_t> iteration = iteration_of(line);
    if (iteration && *iteration <= last_iteration) kept += line + "\n";
  }
  if (kept == text) return;
  if (kept.empty()) {
    remove_tree(file);  // MLflow cannot read empty files
  } else {
    write_file_atomic(file, kept);
  }
}

void cut_metrics(const fs::path& folder, int64_t last_iteration) {
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, ignored)) {
    if (entry.is_regular_file(ignored)) files.push_back(entry.path());
  }
  for (const fs::path& file : files) cut_metric(file, last_iteration);
}

// Multi-line values cannot be read back.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

struct PerformanceName {
  const char* tag;
  const char* name;
  double factor;
};
constexpr PerformanceName kPerformanceNames[] = {
    {"iteration-time", "perf/iteration_time_ms", 1e3},
    {"throughput", "perf/throughput_tflops_per_gpu", 1},
    {"token_throughput(tokens/sec/gpu)", "perf/tps_tokens_per_sec_per_gpu", 1}};

}  // namespace

std::string mlflow_name(const std::string& tag) {
  std::string name = tag;
  for (char& c : name) {
    const bool stays = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("_-.:/ ").find(c) != std::string_view::npos;
    if (!stays) c = '_';
  }
  return name;
}

MlflowSink::MlflowSink(const TrackedRun& run, const LogOptions& options, Logger& log)
    : options_(options), log_(log), id_(run.id) {
  make_directories(run.folder);
  const fs::path experiment = find_or_make_experiment(run.folder, run.group.empty() ? kDefaultExperiment : run.group);
  const std::optional<fs::path> earlier = id_.empty() ? std::nullopt : find_run(run.folder, id_);
  if (earlier) {
    folder_ = *earlier;
    cut_metrics(folder_ / "metrics", run.resumed_after);
  } else {
    if (!id_.empty()) log_.warn("mlflow_dir {} has no run {}: a new run begins in it", run.folder.string(), id_);
    id_ = random_text(32, "0123456789abcdef");
    folder_ = experiment / id_;
    make_directories(folder_);
    const std::string name = run.name.empty() ? id_.substr(0, 8) : run.name;
    write_file_atomic(
        folder_ / kMeta,
        fmt::format("artifact_uri: {}\nend_time: null\nentry_point_name: ''\nexperiment_id: '{}'\n"
                    "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
                    "source_type: {}\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
                    file_uri(folder_ / "artifacts"), experiment.filename().string(), yaml_text(id_), yaml_text(name),
                    yaml_text(id_), kLocalSource, unix_time_ms(), kRunning, yaml_text(tracked_user())));
    write_value("tags/mlflow.runName", name);
  }
  write_facts(run);
  set_state(kRunning, /*has_ended=*/false);
}

MlflowSink::~MlflowSink() {
  if (!has_ended_) set_state(kFailed, /*has_ended=*/true);
}

// Hundreds of small files, not flushed one by one: checkpoints also have the options.
void MlflowSink::write_value(const std::string& name, const std::string& value) {
  remove_tree(folder_ / name);
  AppendFile(folder_ / name, "mlflow_dir", AppendFile::Open::kCreateNew, log_).append(value, "its value");
}

// The last start's, if there were several.
void MlflowSink::write_facts(const TrackedRun& run) {
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) make_directories(folder_ / part);
  for (const TrackedOption& option : run.options) {
    write_value("params/" + mlflow_name(option.name), one_line(option.text));
  }
  const std::pair<const char*, std::string> tags[] = {{"mlflow.user", tracked_user()},
                                                      {"mlflow.source.name", "megalith"},
                                                      {"mlflow.source.type", "LOCAL"},
                                                      {"mlflow.source.git.commit", run.commit},
                                                      {"host", host_name()},
                                                      {"model", run.model},
                                                      {"command", join(run.command, " ")}};
  for (const auto& [name, value] : tags) {
    if (!value.empty()) write_value(fmt::format("tags/{}", name), value);
  }
  write_file_atomic(folder_ / "artifacts" / "config.yaml", run.configuration);
}

void MlflowSink::set_state(int status, bool has_ended) {
  has_ended_ = has_ended;
  try {
    std::string meta = read_file(folder_ / kMeta);
    meta = with_meta_value(meta, "status", std::to_string(status));
    meta = with_meta_value(meta, "end_time", has_ended ? std::to_string(unix_time_ms()) : "null");
    write_file_atomic(folder_ / kMeta, meta);
  } catch (const UserError& error) {
    warn_once("the run's state", error.message());
  }
}

void MlflowSink::warn_once(const std::string& what, const std::string& message) {
  if (!has_warned_) log_.warn("mlflow_dir {}: {} was not written: {}", folder_.string(), what, message);
  has_warned_ = true;
}

AppendFile* MlflowSink::file_of(const std::string& metric) {
  const auto found = files_.find(metric);
  if (found != files_.end()) return found->second.get();
  std::unique_ptr<AppendFile>& file = files_[metric];
  try {
    file = std::make_unique<AppendFile>(folder_ / "metrics" / metric, "mlflow_dir", AppendFile::Open::kAppend, log_);
  } catch (const UserError& error) {  // does not end the run
    warn_once(metric, error.message());
  }
  return file.get();
}

void MlflowSink::add(int64_t iteration, const Scalars& scalars) {
  const int64_t now_ms = unix_time_ms();
  for (const auto& [tag, value] : scalars) {
    const auto* renamed = std::find_if(std::begin(kPerformanceNames), std::end(kPerformanceNames),
                                       [&tag = tag](const PerformanceName& name) { return tag == name.tag; });
    const bool is_renamed = renamed != std::end(kPerformanceNames);
    AppendFile* file = file_of(is_renamed ? renamed->name : mlflow_name(tag));
    if (file == nullptr) continue;
    file->append(fmt::format("{} {} {}\n", now_ms, is_renamed ? value * renamed->factor : value, iteration),
                 fmt::format("the number of iteration {}", iteration));
  }
}

void MlflowSink::on_step(const StepRecord& record) {
  iteration_ = record.iteration;
  train_iters_ = record.train_iters;
  if (record.iteration % options_.tensorboard_log_interval != 0) return;
  const TaggedScalars scalars = tagged_scalars(record, options_);
  add(record.iteration, scalars.both);
  add(record.iteration, scalars.over_iterations);
  add(record.iteration, {{"consumed-samples", static_cast<double>(record.consumed_samples)}});
}

void MlflowSink::on_validation(const ValidationRecord& record) {
  add(record.iteration, tagged_scalars(record, options_));
}

void MlflowSink::on_generation(const GenerationRecord& record) {
  try {
    write_file_atomic(folder_ / "artifacts" / "samples" / fmt::format("iteration_{:07}.txt", record.iteration),
                      record.prompt + record.continuation + "\n");
  } catch (const UserError& error) {
    warn_once(fmt::format("the sample of iteration {}", record.iteration), error.message());
  }
}

// An unfinished run may be resumed, and counts as killed.
void MlflowSink::on_end() { set_state(iteration_ < train_iters_ ? kKilled : kFinished, /*has_ended=*/true); }

}  // namespace megalith
