#include "train/profile.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"
#include "core/system_call.h"

namespace megalith {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

int64_t unix_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::set<ActivityType> activities_of(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);  // includes ROCm's kernels
  return activities;
}

// A collective on this rank: from issue to the first returned wait().
struct Collective {
  CollectiveRecord record;
  int64_t start_ns = 0, end_ns = 0;  // since 1970; end 0 until waited for
};

// The number after "name": in the trace's header, or nothing.
std::optional<int64_t> number_in(std::string_view json, std::string_view name) {
  size_t at = json.find(fmt::format("\"{}\":", name));
  if (at == std::string_view::npos) return std::nullopt;
  at = json.find_first_of("-0123456789", at + name.size() + 3);
  int64_t value = 0;
  if (at == std::string_view::npos ||
      std::from_chars(json.data() + at, json.data() + json.size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

// Collectives overlap each other and the thread's work, so they are asynchronous events, drawn on their own tracks.
std::string collective_events(const std::deque<Collective>& collectives, int64_t base_ns, int64_t end_ns) {
  std::string events;
  int64_t id = 0;
  for (const Collective& one : collectives) {
    const auto us = [&](int64_t ns) { return static_cast<double>(ns - base_ns) / 1e3; };
    const CollectiveRecord& record = one.record;
    OrderedJson event = {{"ph", "b"},
                         {"cat", "collective"},
                         {"name", record.text()},
                         {"pid", static_cast<int64_t>(::getpid())},
                         {"tid", static_cast<int64_t>(::getpid())},
                         {"id", ++id},
                         {"ts", us(one.start_ns)},
                         {"args",
                          {{"axis", record.axis},
                           {"tensor", record.label},
                           {"bytes", record.bytes},
                           {"sequence", record.sequence},
                           {"rank in group", record.group_rank},
                           {"group size", record.group_size}}}};
    events += "  " + dump_json(event) + ",\n";
    event["ph"] = "e";
    event["ts"] = us(one.end_ns > 0 ? one.end_ns : end_ns);
    event.erase("args");
    events += "  " + dump_json(event) + ",\n";
  }
  return events;
}

// Prepends our events in kineto's file; false for an unknown format.
bool insert_events(std::string& json, const std::deque<Collective>& collectives, int64_t end_ns, const Groups& groups) {
  static constexpr std::string_view kEvents = "\"traceEvents\":";
  const size_t list = json.find(kEvents);
  if (list == std::string::npos) return false;
  const size_t open = json.find_first_not_of(" \n\r\t", list + kEvents.size());
  if (open == std::string::npos || json[open] != '[') return false;
  const size_t first = json.find_first_not_of(" \n\r\t", open + 1);
  if (first == std::string::npos || json[first] != '{') return false;
  const std::string_view head = std::string_view(json).substr(0, list);
  // The file's time base; older versions count from 1970.
  const int64_t base_ns = number_in(head, "baseTimeNanoseconds").value_or(0);
  json.insert(open + 1, "\n" + collective_events(collectives, base_ns, end_ns));
  // The name expected by tools that compare ranks.
  json.insert(list, fmt::format("\"distributedInfo\": {{\"rank\": {}, \"world_size\": {}}},\n  ", groups.rank,
                                groups.world->size()));
  return true;
}

}  // namespace

void ProfileOptions::visit(OptionVisitor& v) {
  v.group("Profiling", {.changes_numbers = false});
  v.field("profile", profile, "Trace a few iterations for Perfetto (ui.perfetto.dev), Chrome or TensorBoard.");
  v.field("profile_step_start", profile_step_start, "Number of iterations done when the trace begins.")
      .unit("iterations")
      .at_least(0);
  v.field("profile_step_end", profile_step_end, "Number of iterations done when the trace ends.")
      .unit("iterations")
      .at_least(1);
  v.field("profile_ranks", profile_ranks, "The ranks that write a trace.").at_least(0);
  v.field("profile_dir", profile_dir,
          "The folder for traces; default: tensorboard_dir, else 'profile' in the current folder.")
      .by_rank(ByRank::kFree);
  v.field("dump_pp_data", dump_pp_data,
          "Write the times of what each pipeline rank did to pipeline_trace.json, in iteration profile_step_end or the "
          "last one; `megalith plan --draw --pipeline_trace FILE` draws it.");
  v.field("dump_pp_data_dir", dump_pp_data_dir, "Folder for pipeline_trace.json. Default: the folder for traces.")
      .by_rank(ByRank::kFree);
  v.field("torch_profiler_record_shapes", torch_profiler_record_shapes, "Keep the shapes of operators' arguments.");
}

std::filesystem::path ProfileOptions::folder(const std::optional<std::string>& tensorboard_dir) const {
  return profile_dir.value_or(tensorboard_dir.value_or("profile"));
}

std::vector<UserError> check_profile_options(const ProfileOptions& options) {
  std::vector<UserError> errors;
  if (options.profile && options.profile_step_end <= options.profile_step_start) {
    errors.emplace_back(fmt::format("profile_step_end {} is not above profile_step_start {}: no iteration is traced",
                                    options.profile_step_end, options.profile_step_start),
                        fmt::format("set profile_step_end to {} for one iteration", options.profile_step_start + 1));
  }
  return errors;
}

struct Profiler::Trace {
  int64_t first_iteration = 0, last_iteration = 0;
  std::mutex mutex;  // collectives may be issued and waited for on several threads
  std::deque<Collective> collectives;
  std::unique_ptr<ProfileRange> iteration;

  void on_collective(TracePhase phase, const CollectiveRecord& record) {
    const int64_t now_ns = unix_time_ns();
    const std::lock_guard lock(mutex);
    if (phase == TracePhase::kStart) {
      collectives.push_back({record, now_ns, 0});
      return;
    }
    // Backwards: waits mostly concern recent collectives.
    const auto one = std::find_if(collectives.rbegin(), collectives.rend(), [&](const Collective& other) {
      return other.record.sequence == record.sequence && other.record.axis == record.axis;
    });
    if (one != collectives.rend()) one->end_ns = now_ns;
  }
};

Profiler::Profiler(const ProfileOptions& options, std::filesystem::path folder, const Groups& groups,
                   c10::Device device, Logger& log)
    : options_(options), folder_(std::move(folder)), groups_(groups), device_(device), log_(log) {
  const std::vector<int64_t>& ranks = options_.profile_ranks;
  is_traced_ = options_.profile && std::find(ranks.begin(), ranks.end(), groups_.rank) != ranks.end();
  if (!is_traced_) return;
  // Silences kineto; its errors arrive as exceptions.
  ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  make_directories(folder_);
  // Fail early: the trace may be written hours later.
  const std::filesystem::path probe = folder_ / fmt::format(".rank{}.probe", groups_.rank);
  try {
    write_file_atomic(probe, std::string_view());
  } catch (const UserError& error) {
    try_remove_tree(probe);  // the file may exist: perhaps only the last flush failed
    throw UserError(fmt::format("profile_dir {}: {}", folder_.string(), error.message()),
                    "name a folder that can be written");
  }
  remove_tree(probe);
}

Profiler::~Profiler() { finish(); }

void Profiler::begin_iteration(int64_t iteration) {
  if (!is_traced_) return;
  if (!trace_) {
    if (iteration <= options_.profile_step_start) return;
    if (iteration > options_.profile_step_end) {
      log_.warn("profile: iteration {} is past profile_step_end {}, so nothing is traced", iteration,
                options_.profile_step_end);
      is_traced_ = false;
      return;
    }
    const ProfilerConfig config(ProfilerState::KINETO, options_.torch_profiler_record_shapes);
    kineto::prepareProfiler(config, activities_of(device_));
    kineto::enableProfiler(config, activities_of(device_));
    trace_ = std::make_shared<Trace>();
    trace_->first_iteration = iteration;
    for (const Groups::Pointer& group : groups_.all()) {
      group->set_trace_hook(
          [trace = trace_](TracePhase phase, const CollectiveRecord& record) { trace->on_collective(phase, record); });
    }
  }
  trace_->last_iteration = iteration;
  trace_->iteration = std::make_unique<ProfileRange>(fmt::format("ProfilerStep#{}", iteration));
}

void Profiler::end_iteration(int64_t iteration) {
  if (!trace_) return;
  trace_->iteration.reset();
  if (iteration >= options_.profile_step_end) finish();
}

void Profiler::finish() {
  if (!trace_) return;
  trace_->iteration.reset();
  for (const Groups::Pointer& group : groups_.all()) group->set_trace_hook(nullptr);
  const std::filesystem::path path = folder_ / fmt::format("rank{}.iterations_{}_to_{}.pt.trace.json", groups_.rank,
                                                           trace_->first_iteration, trace_->last_iteration);
  const std::filesystem::path raw = path.string() + ".tmp";
  try {
    const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
    const int64_t end_ns = unix_time_ns();
    const std::lock_guard lock(trace_->mutex);
    result->save(raw.string());  // reports no failure
    std::string json = read_file(raw);
    if (!insert_events(json, trace_->collectives, end_ns, groups_)) {
      log_.warn("profile: the profiler's file has a form unknown here; the trace names no collectives");
    }
    write_file_atomic(path, json);
    written_ = path;
    log_.info("wrote the trace of iterations {} to {} to {}; open it at ui.perfetto.dev", trace_->first_iteration,
              trace_->last_iteration, path.string());
  } catch (const UserError& error) {
    log_.warn("profile: the trace was not written: {}", error.message());
  } catch (const std::exception& error) {
    log_.warn("profile: the trace was not written: {}", error.what());
  }
  try_remove_tree(raw);
  trace_ = nullptr;
  is_traced_ = false;
}

struct ProfileRange::Record {
  at::RecordFunction function{at::RecordScope::USER_SCOPE};
};

ProfileRange::ProfileRange(std::string_view name) {
  if (!at::hasCallbacks()) return;
  record_ = std::make_unique<Record>();
  if (record_->function.isActive()) record_->function.before(name);
}

ProfileRange::~ProfileRange() = default;

}  // namespace megalith
