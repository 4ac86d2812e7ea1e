// See tensorboard.h.
#include "metrics/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "metrics/expert_load.h"
#include "metrics/tfrecord.h"

namespace megalith {
namespace {

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

// TensorBoard reads the files of a folder in the order of their names, so the time comes first, in ten digits.
std::unique_ptr<AppendFile> create_event_file(const std::filesystem::path& folder, Logger& log) {
  const std::string name =
      fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<int64_t>(wall_time_s()), host_name(), ::getpid());
  std::filesystem::path path = folder / name;
  std::error_code ignored;
  for (int again = 1; std::filesystem::exists(path, ignored); ++again)
    path = folder / fmt::format("{}.{}", name, again);
  return std::make_unique<AppendFile>(path, "tensorboard_dir", AppendFile::Open::kCreateNew, log);
}

}  // namespace

TensorboardSink::TensorboardSink(const LogOptions& options, Logger& log)
    : options_(options), file_(create_event_file(*options.tensorboard_dir, log)) {
  file_->append(tfrecord(version_event(wall_time_s())), "the file's version");
}

void TensorboardSink::on_step(const StepRecord& record) {
  if (record.iteration % options_.tensorboard_log_interval != 0) return;
  // The next step's learning rate, as Megatron-LM has it here and in the iteration line.
  Scalars both = {{"learning-rate", record.next_learning_rate.value_or(record.learning_rate)},
                  {"batch-size", static_cast<double>(record.global_batch_size)}};
  if (record.skipped_samples > 0) {
    both.emplace_back("skipped-train-samples", static_cast<double>(record.skipped_samples));
  }
  both.insert(both.end(), record.losses.begin(), record.losses.end());
  if (options_.log_loss_scale_to_tensorboard) both.emplace_back("loss-scale", record.loss_scale);
  if (options_.log_world_size_to_tensorboard) both.emplace_back("world-size", record.num_devices);
  if (record.grad_norm) both.emplace_back("grad-norm", *record.grad_norm);
  if (record.num_zeros) both.emplace_back("num-zeros", static_cast<double>(*record.num_zeros));
  if (record.params_norm) both.emplace_back("params-norm", *record.params_norm);

  Scalars over_iterations;
  if (const std::vector<ExpertLoad> loads = expert_loads_of(record.observations); !loads.empty()) {
    over_iterations.emplace_back("expert-load-max-over-mean", max_over_mean(loads));
    if (const auto share = dropped_share(loads)) {
      over_iterations.emplace_back("expert-dropped-share", *share);
    }
  }
  if (options_.log_timers_to_tensorboard) {
    over_iterations.emplace_back("iteration-time", record.elapsed_ms / 1e3);
    over_iterations.emplace_back("throughput", record.tflops_per_device());
    over_iterations.emplace_back("token_throughput(tokens/sec/gpu)", record.tokens_per_s_per_device());
  }
  if (options_.log_memory_to_tensorboard) {
    over_iterations.emplace_back("mem-reserved-bytes", static_cast<double>(record.memory_reserved_bytes));
    over_iterations.emplace_back("mem-allocated-bytes", static_cast<double>(record.memory_allocated_bytes));
    over_iterations.emplace_back("mem-max-allocated-bytes", static_cast<double>(record.memory_peak_bytes));
  }
  write(record.iteration, record.consumed_samples, both, over_iterations);
}

void TensorboardSink::on_validation(const ValidationRecord& record) {
  Scalars both;
  for (const auto& [name, value] : record.losses) {
    const std::string tag = fmt::format("{} {}", name, record.set);
    both.emplace_back(tag, value);
    if (options_.log_validation_ppl_to_tensorboard) {
      both.emplace_back(tag + " ppl", std::exp(std::isnan(value) ? value : std::min(20.0, value)));
    }
  }
  write(record.iteration, record.consumed_samples, both, {});
}

void TensorboardSink::on_generation(const GenerationRecord& record) {
  // TensorBoard reads texts as Markdown: four spaces before each line keep it as it is.
  std::string text = "    ";
  for (const char c : record.prompt + record.continuation) {
    text += c;
    if (c == '\n') text += "    ";
  }
  file_->append(tfrecord(text_event(wall_time_s(), record.iteration, "sample", text)),
                fmt::format("the sample of iteration {}", record.iteration));
}

void TensorboardSink::write(int64_t iteration, int64_t consumed_samples, const Scalars& both,
                            const Scalars& over_iterations) {
  const double now = wall_time_s();
  Scalars by_iteration = both, by_samples = both;
  by_iteration.insert(by_iteration.end(), over_iterations.begin(), over_iterations.end());
  for (auto& [tag, value] : by_samples) tag += " vs samples";
  // One write for both: a reader never sees the one without the other.
  file_->append(
      tfrecord(scalar_event(now, iteration, by_iteration)) + tfrecord(scalar_event(now, consumed_samples, by_samples)),
      fmt::format("what belongs to iteration {}", iteration));
}

}  // namespace megalith
