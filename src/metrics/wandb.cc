#include "metrics/wandb.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/host.h"
#include "core/json.h"
#include "core/log.h"
#include "metrics/tagged_scalars.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdCharacters = "0123456789abcdefghijklmnopqrstuvwxyz";
constexpr const char* kConfigurationFile = "megalith.yaml";
// Summaries have every name ever logged. A killed run shows its last one.
constexpr int64_t kRowsPerSummary = 50;

std::string json_text(const std::string& text) { return dump_json(Json(text)); }

// Local, as in wandb.
std::string time_in_name(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y%m%d_%H%M%S", &parts));
}

fs::path new_run_folder(const fs::path& parent, const std::string& id, int64_t now_ms) {
  std::error_code ignored;
  for (;; now_ms += 1000) {  // resumed within a second
    const fs::path folder = parent / fmt::format("offline-run-{}-{}", time_in_name(now_ms), id);
    if (!fs::exists(folder, ignored)) return folder;
  }
}

// Some file systems have no links.
void point_to_latest(const fs::path& folder) {
  const fs::path link = folder.parent_path() / "latest-run";
  std::error_code error;
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(fs::symlink_status(link, error))) return;
  fs::remove(link, error);
  fs::create_directory_symlink(folder.filename(), link, error);
}

std::string operating_system() {
  utsname name{};
  if (::uname(&name) != 0) return "";
  return fmt::format("{}-{}-{}", name.sysname, name.release, name.machine);
}

}  // namespace

WandbSink::WandbSink(const TrackedRun& run, const LogOptions& options, Logger& log)
    : options_(options), log_(log), id_(run.id.empty() ? random_text(8, kIdCharacters) : run.id) {
  start_time_ms_ = unix_time_ms();
  folder_ = new_run_folder(run.folder, id_, start_time_ms_);
  make_directories(folder_ / "files");
  make_directories(folder_ / "logs");  // as wandb, which puts the log here
  write_file_atomic(folder_ / "files" / kConfigurationFile, run.configuration);
  file_ = std::make_unique<AppendFile>(folder_ / fmt::format("run-{}.wandb", id_), "wandb_project",
                                       AppendFile::Open::kCreateNew, log);
  file_->append(wandb_file_header(), "the file's beginning");
  begin(run);
  point_to_latest(folder_);
}

WandbSink::~WandbSink() {
  if (!has_ended_) end(/*exit_code=*/1);
}

void WandbSink::begin(const TrackedRun& run) {
  WandbRunRecord record{.run_id = id_,
                        .entity = run.entity,
                        .project = run.group,
                        .display_name = run.name,
                        .host = host_name(),
                        .config = {},
                        .start_time_ms = start_time_ms_,
                        .starting_step = run.resumed_after,
                        .is_resumed = !run.id.empty()};
  for (const TrackedOption& option : run.options) {
    record.config.emplace_back(option.name, option.is_json ? option.text : json_text(option.text));
  }
  if (!run.model.empty()) record.config.emplace_back("model_text", json_text(run.model));
  std::error_code ignored;
  WandbEnvironmentRecord environment{.os = operating_system(),
                                     .program = run.command.empty() ? "megalith" : run.command.front(),
                                     .root = fs::current_path(ignored).string(),
                                     .host = host_name(),
                                     .user = tracked_user(),
                                     .executable = fs::read_symlink("/proc/self/exe", ignored).string(),
                                     .commit = run.commit,
                                     .writer_id = random_text(32, "0123456789abcdef"),
                                     .arguments = {},
                                     .start_time_ms = start_time_ms_};
  if (!run.command.empty()) environment.arguments.assign(run.command.begin() + 1, run.command.end());
  write(wandb_header_record(), "the file's version");
  write(wandb_run_record(record), "what the run is");
  write(wandb_environment_record(environment), "where it runs");
  write(wandb_files_record({kConfigurationFile}), "the name of its configuration");
}

void WandbSink::write(const std::string& record, const std::string& what) {
  const off_t offset = ::lseek(file_->descriptor(), 0, SEEK_END);
  file_->append(wandb_frames(wandb_numbered(record, ++num_records_), offset), what);
}

int64_t WandbSink::runtime_s() const { return (unix_time_ms() - start_time_ms_) / 1000; }

void WandbSink::set(const std::string& name, std::string json) {
  const auto put = [&](JsonItems& items) {
    const auto found = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == name; });
    if (found != items.end()) {
      found->second = json;
    } else {
      items.emplace_back(name, json);
    }
  };
  put(row_);
  put(summary_);
}

void WandbSink::open_row(int64_t iteration) {
  if (row_step_ == iteration) return;
  write_row();
  row_step_ = iteration;
}

void WandbSink::write_row() {
  if (row_step_ < 0) return;
  const int64_t now_ms = unix_time_ms();
  set("_step", std::to_string(row_step_));
  set("_timestamp", wandb_number(static_cast<double>(now_ms) / 1e3));
  set("_runtime", wandb_number(static_cast<double>(now_ms - start_time_ms_) / 1e3));
  write(wandb_history_record(row_, row_step_), fmt::format("the row of iteration {}", row_step_));
  row_.clear();
  row_step_ = -1;
  if (++num_rows_ % kRowsPerSummary == 1) write_summary();
}

void WandbSink::write_summary() { write(wandb_summary_record(summary_, runtime_s()), "the summary"); }

void WandbSink::on_step(const StepRecord& record) {
  if (record.iteration % options_.tensorboard_log_interval != 0) return;
  open_row(record.iteration);
  const TaggedScalars scalars = tagged_scalars(record, options_);
  set("samples vs steps", std::to_string(record.consumed_samples));
  for (const Scalars* part : {&scalars.both, &scalars.over_iterations}) {
    for (const auto& [tag, value] : *part) set(tag, wandb_number(value));
  }
}

void WandbSink::on_validation(const ValidationRecord& record) {
  open_row(record.iteration);
  for (const auto& [tag, value] : tagged_scalars(record, options_)) set(tag, wandb_number(value));
}

void WandbSink::on_generation(const GenerationRecord& record) {
  open_row(record.iteration);
  set("sample", json_text(record.prompt + record.continuation));
}

void WandbSink::on_end() { end(/*exit_code=*/0); }

void WandbSink::end(int exit_code) {
  has_ended_ = true;
  write_row();
  if (num_rows_ > 0) write_summary();
  write(wandb_exit_record(exit_code, runtime_s()), "its end");
}

}  // namespace megalith
