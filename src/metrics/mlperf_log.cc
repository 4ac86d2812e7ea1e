#include "metrics/mlperf_log.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json.h"

namespace megalith {
namespace {

constexpr std::string_view kPoint = "POINT_IN_TIME", kStart = "INTERVAL_START", kEnd = "INTERVAL_END";

std::string samples_metadata(int64_t samples) { return fmt::format("{{\"samples_count\": {}}}", samples); }

}  // namespace

MlperfLog::MlperfLog(std::string path, MlperfRun run, Logger& log, Clock clock)
    : file_(std::move(path), "mlperf_log_file", AppendFile::Open::kAppend, log),
      run_(std::move(run)),
      clock_(std::move(clock)),
      step_ms_(clock_()) {
  write(kPoint, "cache_clear", "true", "{}", step_ms_);
  write(kStart, "init_start", "null", "{}", step_ms_);
  for (const auto& [key, value] : run_.facts) write(kPoint, key, value, "{}", step_ms_);
  write(kEnd, "init_stop", "null", "{}", step_ms_);
  write(kStart, "run_start", "null", "{}", step_ms_);
}

void MlperfLog::write(std::string_view type, std::string_view key, const std::string& value,
                      const std::string& metadata, int64_t time_ms) {
  file_.append(fmt::format(":::MLLOG {{\"namespace\": \"\", \"time_ms\": {}, \"event_type\": \"{}\", \"key\": \"{}\", "
                           "\"value\": {}, \"metadata\": {}}}\n",
                           time_ms, type, key, value, metadata),
               fmt::format("the line of {}", key));
}

void MlperfLog::on_step(const StepRecord& record) {
  if (is_stopped_) return;
  if (!in_block_) write(kStart, "block_start", "null", samples_metadata(samples_), step_ms_);
  in_block_ = true;
  step_ms_ = clock_();
  samples_ = record.consumed_samples;
  if (record.iteration % run_.log_interval != 0 || record.losses.empty()) return;
  const OrderedJson value = {{"train_loss", record.losses.front().second},
                             {"throughput", record.images_per_s_per_device() * record.num_devices}};
  write(kPoint, "tracked_stats", dump_json(value), samples_metadata(samples_), step_ms_);
}

void MlperfLog::on_validation(const ValidationRecord& record) {
  if (is_stopped_ || record.losses.empty() || record.set == "test") return;
  if (judged_set_.empty()) judged_set_ = record.set;
  if (record.set != judged_set_) return;  // the checker takes one accuracy of an evaluation
  const std::string at = samples_metadata(record.consumed_samples);
  // It began when the last step had ended.
  if (in_block_) write(kEnd, "block_stop", "null", at, step_ms_);
  in_block_ = false;
  write(kStart, "eval_start", "null", at, step_ms_);
  step_ms_ = clock_();
  const double loss = record.losses.front().second;
  write(kPoint, "eval_accuracy", dump_json(OrderedJson(loss)), at, step_ms_);
  write(kEnd, "eval_stop", "null", at, step_ms_);
  if (run_.target && loss <= *run_.target) stop("success");
}

void MlperfLog::on_end() {
  if (is_stopped_) return;
  if (in_block_) write(kEnd, "block_stop", "null", samples_metadata(samples_), step_ms_);
  stop("aborted");
}

void MlperfLog::stop(std::string_view status) {
  is_stopped_ = true;
  write(kEnd, "run_stop", "null", fmt::format("{{\"samples_count\": {}, \"status\": \"{}\"}}", samples_, status),
        step_ms_);
}

std::optional<double> mlperf_target(std::string_view benchmark) {
  constexpr std::pair<std::string_view, double> kTargets[] = {
      {"llama31_8b", 3.3}, {"llama2_70b_lora", 0.925}, {"flux1", 0.586},
      {"llama31_405b", 5.6}, {"gpt_oss_20b", 3.34},      {"deepseekv3_671b", 3.6}};
  for (const auto& [name, target] : kTargets) {
    if (name == benchmark) return target;
  }
  return std::nullopt;
}

}  // namespace megalith
