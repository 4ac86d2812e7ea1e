#include "train/run_record.h"

#include <nlohmann/json.hpp>

#include "config/help.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/visible_text.h"
#include "metrics/run_stamp.h"

namespace megalith {
namespace {

constexpr int64_t kRecordFormat = 1;
constexpr const char* kRunning = "running";

// True for options left out of run_configuration() and run_options(): values from output_dir, a checkpoint or a model's
// folder; overwrite; a launcher's one-time secret.
bool is_left_out(const Option& option) {
  const std::string& name = option.name();
  return option.source().layer == OptionLayer::kModel || name == "overwrite" || name == "store_secret_file";
}

// JSON escapes only characters below a blank; terminals interpret more.
std::vector<std::string> visible(std::vector<std::string> words) {
  for (std::string& word : words) word = visible_text(word);
  return words;
}

OrderedJson json_of(const RunStart& start) {
  std::map<std::string, std::string> options = start.options;
  for (auto& [name, value] : options) value = visible_text(value);
  return {{"run_id", start.run_id},
          {"begin", start.begin},
          {"end", start.end},
          {"status", visible_text(start.status)},
          {"first_iteration", start.first_iteration},
          {"last_iteration", start.last_iteration},
          {"version", start.version},
          {"commit", start.commit},
          {"torch_version", start.torch_version},
          {"model", start.model},
          {"device", start.device},
          {"world_size", start.hosts.size()},
          {"hosts", start.hosts},
          {"axes", start.axes},
          {"back_end", start.back_end},
          {"interface", start.interface},
          {"meeting_ms", start.meeting_ms},
          {"exit_code", start.exit_code ? OrderedJson(*start.exit_code) : OrderedJson(nullptr)},
          {"directory", visible_text(start.directory)},
          {"command", visible(start.command)},
          {"options", options}};
}

RunStart start_of(const Json& json, const std::string& where) {
  RunStart start;
  const auto text = [&](const char* name) { return json_get<std::string>(json, name, where); };
  start.run_id = text("run_id");
  start.begin = text("begin");
  start.end = text("end");
  start.status = text("status");
  start.first_iteration = json_get<int64_t>(json, "first_iteration", where);
  start.last_iteration = json_get<int64_t>(json, "last_iteration", where);
  start.version = text("version");
  start.commit = text("commit");
  start.torch_version = text("torch_version");
  start.model = text("model");
  start.device = text("device");
  start.directory = text("directory");
  start.hosts = json_get<std::vector<std::string>>(json, "hosts", where);
  // Not recorded by earlier versions.
  if (const Json* axes = find_member(json, "axes", where)) {
    for (const auto& [axis, ranks] : axes->items()) start.axes[axis] = json_as<int64_t>(ranks, where + ": axes");
  }
  start.back_end = json_get_or<std::string>(json, "back_end", "", where);
  start.interface = json_get_or<std::string>(json, "interface", "", where);
  start.meeting_ms = json_get_or<double>(json, "meeting_ms", 0, where);
  start.exit_code = json_find<int64_t>(json, "exit_code", where);
  start.command = json_get<std::vector<std::string>>(json, "command", where);
  for (const auto& [name, value] : get_member(json, "options", where).items()) {
    start.options[name] = json_as<std::string>(value, where + ": options");
  }
  return start;
}

}  // namespace

std::vector<RunStart> read_run_record(const std::filesystem::path& path) {
  const Json json = load_json(path);
  const std::string where = path.string();
  const auto format = json_get<int64_t>(json, "format", where);
  if (format > kRecordFormat) {
    throw UserError(fmt::format("{} has format {}, and this program reads up to {}", where, format, kRecordFormat),
                    "use the program that wrote it, or a newer one");
  }
  const Json& list = get_member(json, "starts", where);
  if (!list.is_array()) throw UserError(fmt::format("{}: starts is no list", where));
  std::vector<RunStart> starts;
  for (const Json& one : list) starts.push_back(start_of(one, where));
  return starts;
}

void write_run_record(const std::filesystem::path& path, const std::vector<RunStart>& starts) {
  OrderedJson list = OrderedJson::array();
  for (const RunStart& start : starts) list.push_back(json_of(start));
  write_file_atomic(path, dump_json_pretty(OrderedJson{{"format", kRecordFormat}, {"starts", list}}));
}

std::string run_configuration(const Resolved& resolved) {
  const std::string all = resolved_yaml(*resolved.options, Shown::kNonDefault);
  std::string kept, title;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string line = all.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("# ")) title = (kept.empty() ? "" : "\n") + line + "\n";
    const Option* option = resolved.options->find(line.substr(0, line.find(':')));
    if (option == nullptr || is_left_out(*option)) continue;
    kept += title + line + "\n";
    title.clear();
  }
  return kept;
}

std::map<std::string, std::string> run_options(const Resolved& resolved) {
  std::map<std::string, std::string> options;
  for (const auto& option : resolved.options->options()) {
    if (!option->is_default() && !is_left_out(*option)) options[option->name()] = option->text();
  }
  return options;
}

RunRecord::RunRecord(std::filesystem::path path, RunStart start, bool begins_anew, Logger& log)
    : path_(std::move(path)), log_(log) {
  if (!begins_anew && std::filesystem::exists(path_) && !std::filesystem::is_empty(path_))
    starts_ = read_run_record(path_);
  for (RunStart& earlier : starts_) {
    if (earlier.end.empty() && earlier.status == kRunning) earlier.status = "ended without a word";  // such as a kill
  }
  start.status = kRunning;
  start.begin = utc_timestamp();
  starts_.push_back(std::move(start));
  if (path_.has_parent_path()) make_directories(path_.parent_path());
  write_run_record(path_, starts_);
}

void RunRecord::end(const std::string& status, int64_t last_iteration, int64_t exit_code) {
  RunStart& start = starts_.back();
  start.status = status;
  start.exit_code = exit_code;
  start.end = utc_timestamp();
  start.last_iteration = last_iteration;
  try {
    write_run_record(path_, starts_);
  } catch (const UserError& error) {
    log_.warn("the run's record: {}", error.message());
  }
}

}  // namespace megalith
