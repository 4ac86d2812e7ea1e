#include "metrics/jsonl.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/system_call.h"
#include "metrics/expert_load.h"
#include "metrics/run_stamp.h"

namespace megalith {
namespace {

// More would make lines of many kilobytes.
constexpr size_t kMostExpertNumbers = 4096;

template <typename T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

// Up to the last newline, searched backwards.
off_t complete_length(int fd, off_t size) {
  char block[4096];
  while (size > 0) {
    const off_t begin = std::max<off_t>(0, size - static_cast<off_t>(sizeof(block)));
    const ssize_t got = retry_interrupted([&] { return ::pread(fd, block, static_cast<size_t>(size - begin), begin); });
    if (got <= 0) return size;  // unreadable
    for (ssize_t i = got; i > 0; --i) {
      if (block[i - 1] == '\n') return begin + i;
    }
    size = begin;
  }
  return 0;
}

std::string metric_key(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

void add_stamp(OrderedJson& line, const std::string& run_id) {
  line["time"] = utc_timestamp();
  if (!run_id.empty()) line["run_id"] = run_id;
}

}  // namespace

std::string json_line(const ValidationRecord& record, const std::string& run_id) {
  OrderedJson line;
  line["kind"] = "evaluation";
  line["iteration"] = record.iteration;
  line["set"] = record.set;
  line["consumed_samples"] = record.consumed_samples;
  line["evaluation_loss"] = record.losses.empty() ? OrderedJson(nullptr) : OrderedJson(record.losses.front().second);
  for (const auto& [name, value] : record.losses) line["evaluation_losses"][metric_key(name)] = value;
  if (record.is_best) line["is_best"] = *record.is_best;
  add_stamp(line, run_id);
  return dump_json(line);
}

std::string json_line(const StepRecord& record, const std::string& run_id) {
  OrderedJson line;
  line["kind"] = "step";
  line["iteration"] = record.iteration;
  line["train_iters"] = record.train_iters;
  for (const auto& [name, value] : record.losses) line[metric_key(name)] = value;
  line["grad_norm"] = or_null(record.grad_norm);
  line["learning_rate"] = record.learning_rate;
  line["elapsed_ms"] = record.elapsed_ms;
  line["tokens_per_s_per_device"] = record.tokens_per_s_per_device();
  line["tflops_per_device"] = record.tflops_per_device();
  line["model_tflops_per_device"] = record.model_tflops_per_device();
  line["causal_tflops_per_device"] = record.causal_tflops_per_device();
  line["consumed_samples"] = record.consumed_samples;
  line["global_batch_size"] = record.global_batch_size;
  line["tokens"] = record.tokens;
  if (record.loss_tokens) {
    line["loss_tokens"] = *record.loss_tokens;
    line["loss_tokens_per_s_per_device"] = record.loss_tokens_per_s_per_device();
  }
  if (record.image_size > 0) {
    line["image_size"] = record.image_size;
    line["images_per_s_per_device"] = record.images_per_s_per_device();
  }
  line["loss_scale"] = record.loss_scale;
  line["is_skipped"] = record.is_skipped;
  line["is_nan"] = record.is_nan;
  if (record.is_repeated) line["is_repeated"] = true;
  line["memory_used_bytes"] = record.memory_used_bytes;
  line["memory_used_fraction"] = record.memory_used_fraction();
  line["memory_peak_bytes"] = record.memory_peak_bytes;
  if (record.params_norm) line["params_norm"] = *record.params_norm;
  if (record.num_zeros) line["num_zeros"] = *record.num_zeros;
  if (record.num_sanitized) line["num_sanitized"] = *record.num_sanitized;
  if (const std::vector<ExpertLoad> loads = expert_loads_of(record.observations); !loads.empty()) {
    line["expert_load_max_over_mean"] = max_over_mean(loads);
    if (const auto share = dropped_share(loads)) line["expert_dropped_share"] = *share;
    size_t num_numbers = 0;
    for (const ExpertLoad& load : loads) num_numbers += load.tokens.size();
    for (const ExpertLoad& load : loads) {
      if (num_numbers > kMostExpertNumbers) break;
      line["expert_tokens"][std::to_string(load.layer)] = load.tokens;
    }
  }
  add_stamp(line, run_id);
  return dump_json(line);  // non-finite becomes null
}

std::string json_line(const EventRecord& record, const std::string& run_id) {
  OrderedJson line;
  line["kind"] = "event";
  line["event"] = record.kind;
  line["iteration"] = record.iteration;
  line["text"] = record.text;
  line["samples"] = {record.begin_sample, record.end_sample};
  add_stamp(line, run_id);
  return dump_json(line);
}

JsonlSink::JsonlSink(std::filesystem::path path, Logger& log, std::string run_id)
    : file_(std::move(path), "metrics_file", AppendFile::Open::kAppend, log),
      run_id_(run_id.empty() ? make_run_id() : std::move(run_id)) {
  const int fd = file_.descriptor();
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;  // a pipe or terminal
  const off_t complete = complete_length(fd, status.st_size);
  if (complete == status.st_size) return;
  const std::string name = file_.path().string();
  log.info("metrics_file {}: dropped an unfinished last line of {} bytes", name, status.st_size - complete);
  if (retry_interrupted([&] { return ::ftruncate(fd, complete); }) != 0) {
    throw UserError(fmt::format("metrics_file {}: its last line is unfinished and cannot be dropped: {}", name,
                                system_error_text(errno)),
                    "remove that line, or name another file");
  }
}

void JsonlSink::on_step(const StepRecord& record) {
  file_.append(json_line(record, run_id_) + "\n", fmt::format("the line of iteration {}", record.iteration));
}

void JsonlSink::on_validation(const ValidationRecord& record) {
  file_.append(json_line(record, run_id_) + "\n",
               fmt::format("the line of the evaluation at iteration {}", record.iteration));
}

void JsonlSink::on_event(const EventRecord& record) {
  file_.append(json_line(record, run_id_) + "\n", fmt::format("the event of iteration {}", record.iteration));
}

}  // namespace megalith
